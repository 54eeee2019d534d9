"""The interface for gates, and the candidate proposals that they check."""

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
"""Maximum number of turns in a model's proposal."""
MAX_ACTIONS = 200
"""Maximum number of actions in a model's proposal."""
MAX_CHARS = 40_000
"""Maximum total number of characters in a model's proposal."""
_REASON_CAP = 2_000
_RAW_CAP = 20_000
_SHOWN_ITEMS = 20
_SHOWN_CHARS = 1_000


class Rejected(Exception):
    """Exception raised by a gate to reject a candidate; the message gives the reason.

    Args:
        reason: the reason, as text.
        env_steps: number of env steps that the gate used.
    """

    def __init__(self, reason: str, *, env_steps: int = 0) -> None:
        super().__init__(reason)
        self.env_steps = env_steps


class HoldTask(Rejected):
    """Exception raised by a gate to hold an otherwise valid task for human review."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that the gates are checking.

    Attributes:
        proposal: the input: a model's proposal, a draft, or the raw JSON text of a draft.
        draft: the draft, once it has been parsed.
        task: the task, once it has been built.
        minimal: True if the reference is known not to contain unnecessary steps.
        replay: the result of replaying the reference in a new engine; None before the replay.
        env_steps: env steps used so far.
        context: the context that the explorer was given; None without an explorer.
        said: the current gate's finding if it reports more than a pass; otherwise "".
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
        """The candidate's draft. Raises Rejected if the proposal was not parsed."""
        if self.draft is None:
            raise Rejected("the proposal was not converted to a draft before this gate")
        return self.draft

    @property
    def the_task(self) -> Task:
        """The task built from the draft. Raises Rejected if no task was built."""
        if self.task is None:
            raise Rejected("no task was built from the draft before this gate")
        return self.task

    @property
    def the_replay(self) -> Replay:
        """The replay of the reference solution. Raises Rejected if there was no replay."""
        if self.replay is None:
            raise Rejected("the reference solution was not replayed before this gate")
        return self.replay

    def verdict(
        self, *, checks: tuple[Check, ...] = (), gate: str = "", reason: str = ""
    ) -> Verdict:
        """Return the verdict: accepted, unless ``gate`` names the gate that rejected the draft."""
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
        """Return the draft as JSON, or the raw text if there is no draft."""
        if self.draft is not None:
            cleaned: dict[str, Any] = _clean_json(self.draft.model_dump(mode="json"))
            return cleaned
        if isinstance(self.proposal, str):
            return {"text": clean_text(self.proposal, _RAW_CAP)}
        return {}

    def _storable_proposal(self) -> dict[str, Any]:
        """Return the candidate's proposal as JSON, or {} if it does not come from a model."""
        if not isinstance(self.proposal, Proposal):
            return {}
        data: dict[str, Any] = _clean_json(self.proposal.model_dump(mode="json"))
        return data if describe_size_problem(self.proposal) is None else _truncate(data)


def describe_size_problem(proposal: Proposal) -> str | None:
    """Return a message that says which limit a proposal exceeds, or None if it exceeds none."""
    for what, items, most in (
        ("turns", proposal.turns, MAX_TURNS),
        ("actions", proposal.actions, MAX_ACTIONS),
    ):
        if len(items) > most:
            return f"has {len(items)} {what}; the limit is {most}"
    texts = (proposal.description, proposal.done_when, *proposal.turns, *proposal.actions)
    if (n_chars := sum(map(len, texts))) > MAX_CHARS:
        return f"has {n_chars} characters; the limit is {MAX_CHARS}"
    return None


class Gate(Protocol):
    """Interface for gates, each of which performs one check of a candidate."""

    @property
    def name(self) -> str:
        """The gate's name as it appears in verdicts."""
        ...

    def check(self, candidate: Candidate) -> Candidate:
        """Return the candidate, extended with the gate's findings.

        Raises:
            Rejected: if the candidate fails the check; the message is the reason.
            HoldTask: if the candidate passes, but a human must review it before training.
            EnvBackendError: if the engine failed, which does not count against the candidate.
        """
        ...


def _clean_json(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value, _RAW_CAP)
    if isinstance(value, Mapping):
        return {clean_text(str(key), _RAW_CAP): _clean_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _truncate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a shortened version of a proposal that is too large to store."""
    return {
        key: clean_text(value, _SHOWN_CHARS)
        if isinstance(value, str)
        else [clean_text(item, _SHOWN_CHARS) for item in value[:_SHOWN_ITEMS]]
        if isinstance(value, list)
        else value
        for key, value in data.items()
    }
