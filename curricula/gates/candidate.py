"""A proposal on its way through the gates, and what a gate is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from coevo_gym.core.benchmark import Replay
from coevo_gym.core.evolution import Check, Context, Draft, Proposal, Verdict, digest
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import Task

MAX_TURNS = 50
"""Most turns of a proposal that a model made."""
MAX_ACTIONS = 200
"""Most actions of one."""
MAX_CHARS = 40_000
"""Most characters of one, all its texts together."""
_REASON_CAP = 2_000
_RAW_CAP = 20_000
_SHOWN_ITEMS = 20
_SHOWN_CHARS = 1_000


class Rejected(Exception):
    """Raised by a gate that turns a candidate down; the message is the reason.

    Args:
        reason: why, in words.
        env_steps: env steps that the gate spent on finding out.
    """

    def __init__(self, reason: str, *, env_steps: int = 0) -> None:
        super().__init__(reason)
        self.env_steps = env_steps


class Held(Rejected):
    """Raised by a gate that finds no fault, but puts the task aside for a person to look at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal on its way through the gates.

    Attributes:
        proposal: what came in: what a model proposes, a draft, or the raw JSON text of one.
        draft: the draft, once there is one.
        task: the built task, once there is one.
        minimal: whether its reference is known to hold no step that is not needed.
        replay: what its reference did in a fresh engine, once replayed.
        env_steps: env steps spent on it so far.
        context: what its explorer was told; None for one that nobody was sent out for.
        said: what the gate that has it found, where there is more to tell than that it passed.
    """

    proposal: Proposal | Draft | str
    draft: Draft | None = None
    task: Task | None = None
    minimal: bool = False
    replay: Replay | None = None
    env_steps: int = 0
    context: Context | None = None
    said: str = ""

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

    def verdict(
        self, *, checks: tuple[Check, ...] = (), gate: str = "", reason: str = ""
    ) -> Verdict:
        """Its end: accepted without a gate, else rejected by it for the reason."""
        draft, proposal = self._storable_draft(), self._storable_proposal()
        return Verdict(
            draft_id=digest(draft or proposal),
            context_id=self.context.id if self.context else "",
            accepted=not gate,
            gate=gate,
            reason=clean_text(reason, _REASON_CAP),
            task_id=self.task.id if self.task else "",
            draft=draft,
            proposal=proposal,
            checks=checks,
        )

    def _storable_draft(self) -> dict[str, Any]:
        """The draft as JSON that any store takes; the raw text where there is no draft."""
        if self.draft is not None:
            cleaned: dict[str, Any] = _clean(self.draft.model_dump(mode="json"))
            return cleaned
        if isinstance(self.proposal, str):
            return {"text": clean_text(self.proposal, _RAW_CAP)}
        return {}

    def _storable_proposal(self) -> dict[str, Any]:
        """What a model proposed, as JSON that any store takes; {} where no model did."""
        if not isinstance(self.proposal, Proposal):
            return {}
        data: dict[str, Any] = _clean(self.proposal.model_dump(mode="json"))
        return data if oversized(self.proposal) is None else _cut(data)


def oversized(proposal: Proposal) -> str | None:
    """What of a proposal is more than anybody would read, in words; None if nothing is."""
    for what, items, most in (
        ("turns", proposal.turns, MAX_TURNS),
        ("actions", proposal.actions, MAX_ACTIONS),
    ):
        if len(items) > most:
            return f"has {len(items)} {what}, more than {most}"
    texts = (proposal.description, proposal.done_when, *proposal.turns, *proposal.actions)
    if (n_chars := sum(map(len, texts))) > MAX_CHARS:
        return f"has {n_chars} characters, more than {MAX_CHARS}"
    return None


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
            Held: if it passes, and a person shall look at it before anyone practises it.
            EnvBackendError: if the engine failed; that says nothing about the candidate.
        """
        ...


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value, _RAW_CAP)
    if isinstance(value, Mapping):
        return {clean_text(str(key), _RAW_CAP): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _cut(data: Mapping[str, Any]) -> dict[str, Any]:
    """The beginnings of a proposal that is too large to keep."""
    return {
        key: clean_text(value, _SHOWN_CHARS)
        if isinstance(value, str)
        else [clean_text(item, _SHOWN_CHARS) for item in value[:_SHOWN_ITEMS]]
        if isinstance(value, list)
        else value
        for key, value in data.items()
    }
