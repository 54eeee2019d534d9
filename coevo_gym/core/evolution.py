"""The data of one pass of evolution: signal → context → draft → verdict, in rounds.

All of it is frozen and goes to JSON and back, so that a round can be stored and replayed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import Field, SerializeAsAny, model_validator

from coevo_gym.core.kinds import KIND_NAME
from coevo_gym.core.task import (
    FrozenDict,
    FrozenModel,
    JsonObject,
    Task,
    Text,
    World,
    canonical_json,
    resolve_models,
)


def digest(value: Any) -> str:
    """Short content hash of a JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


class Signal(FrozenModel):
    """A detected weakness in one trajectory.

    Attributes:
        kind: which rule fired; any name (``core/kinds.py`` has its label and colour).
        task_id: the task it fired on.
        group_id: the group of the trajectory.
        index: position of the trajectory within its group.
        evidence: the numbers that the rule read.
    """

    kind: str = Field(pattern=KIND_NAME)
    task_id: str
    group_id: str
    index: int = Field(ge=0)
    evidence: JsonObject = FrozenDict()


class Context(FrozenModel):
    """What the explorer is told about one weakness.

    Attributes:
        kind: why an explorer is sent out: the signal behind it, or another name, such as
            ``unguided`` (no guidance at all) or ``blind`` (a task drawn blindly).
        task: the training task to start from.
        actions: what the agent did there; () without a rollout.
        success: whether that rollout succeeded.
        summary: the weakness in a sentence.
    """

    kind: str = Field(pattern=KIND_NAME)
    task: Task
    actions: tuple[Text, ...] = ()
    success: bool = False
    summary: Text = ""

    @property
    def id(self) -> str:
        """Short content hash."""
        return digest([self.kind, self.task.id, self.actions, self.success, self.summary])


class Draft(FrozenModel):
    """A proposed task before proof: a story, a world, and actions that claim to solve it.

    Attributes:
        benchmark: name of the benchmark.
        scenario: the scenario that it claims to lie in.
        instruction: what the agent would be asked to do.
        world: starts the engine.
        solution: actions that claim to solve it.
        subset: the benchmark's own name for a part, or "".
        parents: ids of the tasks that it grew from.
        context_id: id of the context that the explorer was given, or "".
    """

    benchmark: str
    scenario: Text
    instruction: Text
    world: SerializeAsAny[World]
    solution: tuple[Text, ...]
    subset: str = ""
    parents: tuple[str, ...] = ()
    context_id: str = ""

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, data: Any) -> Any:
        return resolve_models(data, "world")

    @property
    def id(self) -> str:
        """Short content hash."""
        return digest(self.model_dump(mode="json"))


class Verdict(FrozenModel):
    """The end of one draft: accepted, or rejected by a named gate for a reason.

    Attributes:
        draft_id: id of the draft (or of the raw text that was not one).
        context_id: the context it was drafted from.
        accepted: whether it passed every gate.
        gate: the gate that rejected it; "" if none did.
        reason: why, in words; "" if accepted.
        task_id: id of the built task; "" if it was never built.
        draft: the draft as JSON, so that a rejection can be studied.
    """

    draft_id: str
    context_id: str = ""
    accepted: bool
    gate: str = ""
    reason: str = ""
    task_id: str = ""
    draft: JsonObject = FrozenDict()


class Round(FrozenModel):
    """The order for one pass of evolution.

    Attributes:
        id: unique within a curriculum, in order: ``round-0``, ``round-1``, …
        contexts: where to explore.
        n_unguided: how many tasks to find without any context (CoEvolve's D_0).
        budget: most drafts that may be tried.
        seed: seed of all randomness in the round.
        known: tasks that the pool holds already, for the duplicate gate. Left out of JSON:
            the curriculum that planned the round knows them.
    """

    id: str
    contexts: tuple[Context, ...] = ()
    n_unguided: int = Field(default=0, ge=0)
    budget: int = Field(gt=0)
    seed: int = Field(ge=0)
    known: tuple[Task, ...] = Field(default=(), exclude=True)

    @classmethod
    def unguided(cls, n: int, *, id: str = "round-0", seed: int = 0) -> Round:
        """A round that looks for ``n`` tasks anywhere in the training scenarios."""
        return cls(id=id, n_unguided=n, budget=4 * n, seed=seed)


class RoundResult(FrozenModel):
    """What one pass of evolution found and cost.

    Attributes:
        round_id: id of the round.
        accepted: tasks that passed every gate.
        verdicts: one for every draft that was tried.
        env_steps: env steps spent on exploration and on building and replaying drafts.
        gate_steps: those of them that gates spent on drafts.
        seconds: wall time.
    """

    round_id: str
    accepted: tuple[Task, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    env_steps: int = Field(default=0, ge=0)
    gate_steps: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
