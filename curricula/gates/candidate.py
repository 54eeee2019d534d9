"""A proposal on its way through the gates, and what a gate is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from coevo_gym.core.benchmark import Replay
from coevo_gym.core.evolution import Draft, Verdict, digest
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import Task

_REASON_CAP = 2_000
_RAW_CAP = 20_000


class Rejected(Exception):
    """Raised by a gate that turns a candidate down; the message is the reason.

    Args:
        reason: why, in words.
        env_steps: env steps that the gate spent on finding out.
    """

    def __init__(self, reason: str, *, env_steps: int = 0) -> None:
        super().__init__(reason)
        self.env_steps = env_steps


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal on its way through the gates.

    Attributes:
        proposal: what came in: a draft, or the raw JSON text of one.
        draft: the draft, once there is one.
        task: the built task, once there is one.
        minimal: whether its reference is known to hold no step that is not needed.
        replay: what its reference did in a fresh engine, once replayed.
        env_steps: env steps spent on it so far.
    """

    proposal: Draft | str
    draft: Draft | None = None
    task: Task | None = None
    minimal: bool = False
    replay: Replay | None = None
    env_steps: int = 0

    @property
    def the_draft(self) -> Draft:
        """The draft; without one, a rejection."""
        if self.draft is None:
            raise Rejected("the proposal was never parsed into a draft")
        return self.draft

    @property
    def the_task(self) -> Task:
        """The built task; without one, a rejection."""
        if self.task is None:
            raise Rejected("the draft was never built into a task")
        return self.task

    @property
    def the_replay(self) -> Replay:
        """The replay of its reference; without one, a rejection."""
        if self.replay is None:
            raise Rejected("the reference was never replayed")
        return self.replay

    def verdict(self, context_id: str, *, gate: str = "", reason: str = "") -> Verdict:
        """Its end: accepted without a gate, else rejected by it for the reason."""
        draft = self._storable()
        return Verdict(
            draft_id=digest(draft),
            context_id=context_id,
            accepted=not gate,
            gate=gate,
            reason=clean_text(reason, _REASON_CAP),
            task_id=self.task.id if self.task else "",
            draft=draft,
        )

    def _storable(self) -> dict[str, Any]:
        """The draft as JSON that any store takes; the raw text where there is no draft."""
        if self.draft is None:
            return {"text": clean_text(str(self.proposal), _RAW_CAP)}
        cleaned: dict[str, Any] = _clean(self.draft.model_dump(mode="json"))
        return cleaned


class Gate(Protocol):
    """One check."""

    @property
    def name(self) -> str:
        """The name that verdicts carry."""
        ...

    def check(self, candidate: Candidate) -> Candidate:
        """Return the candidate, with what the gate learned about it.

        Raises:
            Rejected: with the reason, if it fails the check.
            EnvBackendError: if the engine failed; that says nothing about the candidate.
        """
        ...


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value, _RAW_CAP)
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
