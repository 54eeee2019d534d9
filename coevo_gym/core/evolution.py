"""The data of one pass of evolution: signal → context → draft → verdict, in rounds.

All of it is frozen and goes to JSON and back, so that a round can be stored and replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field, SerializeAsAny, SerializerFunctionWrapHandler, model_validator
from pydantic.functional_serializers import model_serializer

from coevo_gym.core.kinds import KIND_NAME
from coevo_gym.core.spend import Usage
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


def _without_defaults(dumped: dict[str, Any], *fields: str) -> dict[str, Any]:
    """What stored rounds are known by stays as it was before there were these fields."""
    return {name: value for name, value in dumped.items() if value or name not in fields}


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


class Exchange(FrozenModel):
    """One action, and what came of it.

    Attributes:
        action: what was sent to the env.
        observation: what it led to.
        error_kind: why it had no effect, or "".
    """

    action: Text
    observation: Text
    error_kind: str = ""


class ContextBrief(FrozenModel):
    """What a study of a weak rollout says to whoever explores from it (CoEvolve, Fig. 11).

    Attributes:
        summary: the rollout retold from its evidence.
        failure_cause: why it failed; "" if it did not.
        instability_pattern: what makes its outcome change from try to try.
        focus_pattern: operations to look at.
        exploration_objectives: what to try, concretely.
        do_not_repeat: what led nowhere.
    """

    summary: Text
    failure_cause: Text = ""
    instability_pattern: Text = ""
    focus_pattern: tuple[Text, ...] = ()
    exploration_objectives: tuple[Text, ...] = ()
    do_not_repeat: tuple[Text, ...] = ()


class Context(FrozenModel):
    """What the explorer is told about one weakness, or about one target.

    Attributes:
        kind: why an explorer is sent out: the signal behind it, or another name, such as
            ``unguided`` (no guidance at all), ``blind`` (a task drawn blindly) or ``target``.
        task: the training task to start from.
        actions: what the agent did there; () without a rollout.
        success: whether that rollout succeeded.
        summary: the weakness in a sentence.
        evidence: what was done in the rollout and what came of it, as much as there is room for.
        last_observation: what its last action led to.
        behaviour: what the benchmark calls the steps of that rollout, in order, without repeats.
        contrast: what was done in a rollout of the same group that ended the other way, if one did.
        known: requests that are known there already; the evolver fills it in.
        target: tags of the task that is looked for (``envs/tags.py``); () where any will do.
        near: tags that an unguided explorer is to stay near; the evolver fills it in.
        usual: the commonest behaviours, with how often they were seen; of rare signals only.
    """

    kind: str = Field(pattern=KIND_NAME)
    task: Task
    actions: tuple[Text, ...] = ()
    success: bool = False
    summary: Text = ""
    evidence: tuple[Exchange, ...] = ()
    last_observation: Text = ""
    behaviour: tuple[Text, ...] = ()
    contrast: tuple[Text, ...] = ()
    known: tuple[Text, ...] = ()
    target: tuple[Text, ...] = ()
    near: tuple[Text, ...] = ()
    usual: tuple[Text, ...] = ()

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_defaults(dump(self), "target", "near", "usual")

    @property
    def id(self) -> str:
        """Short content hash; the evidence and all that follows it stay outside, but a target."""
        content = [self.kind, self.task.id, self.actions, self.success, self.summary]
        return digest([*content, self.target] if self.target else content)


class Walk(FrozenModel):
    """One exploration from a context.

    Attributes:
        context_id: id of the context.
        number: 0, 1, …, its place among the walks from there.
        exchanges: what was done, and what came of it.
        opening: what the explorer was shown before its first action.
    """

    context_id: str
    number: int = Field(ge=0)
    exchanges: tuple[Exchange, ...]
    opening: Text = ""

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_defaults(dump(self), "opening")


class Proposal(FrozenModel):
    """A task that a model made out of walks, in no benchmark's own form.

    Attributes:
        description: the goal in a sentence.
        turns: what the user says, one text for each turn; most benchmarks have one.
        actions: claim to bring the goal about from the start.
        confidence: how sure the model is that they do, in [0, 1].
        done_when: how one sees that it is done.
    """

    description: Text
    turns: tuple[Text, ...] = Field(min_length=1)
    actions: tuple[Text, ...]
    confidence: float = Field(ge=0, le=1)
    done_when: Text = ""

    @property
    def id(self) -> str:
        """Short content hash."""
        return digest(self.model_dump(mode="json"))


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


class Check(NamedTuple):
    """A gate that a draft has passed.

    Attributes:
        gate: its name.
        said: what it found, where there is more to tell than that; or "".
    """

    gate: str
    said: str = ""


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
        proposal: what a model had proposed, as JSON; empty for drafts that no model made.
        checks: the gates that it passed, in order.
    """

    draft_id: str
    context_id: str = ""
    accepted: bool
    gate: str = ""
    reason: str = ""
    task_id: str = ""
    draft: JsonObject = FrozenDict()
    proposal: JsonObject = FrozenDict()
    checks: tuple[Check, ...] = ()


class Explored(FrozenModel):
    """What exploring one context was like, for people to look at.

    Attributes:
        context: where it began.
        brief: what a study of its rollout said; None without one.
        walks: what was done.
        problems: what went otherwise than planned, such as a fallback that was used; in words.
    """

    context: Context
    brief: ContextBrief | None = None
    walks: tuple[Walk, ...] = ()
    problems: tuple[Text, ...] = ()


class Round(FrozenModel):
    """The order for one pass of evolution.

    Attributes:
        id: unique within a curriculum, in order: ``round-0``, ``round-1``, …
        contexts: where to explore.
        n_unguided: how many tasks to find without any context (CoEvolve's D_0).
        n_enough: with contexts, so many accepted tasks are enough; 0 to explore all contexts.
        budget: most drafts that may be tried.
        seed: seed of all randomness in the round.
        known: tasks that the pool holds already, for the duplicate gate. Left out of JSON:
            the curriculum that planned the round knows them.
    """

    id: str
    contexts: tuple[Context, ...] = ()
    n_unguided: int = Field(default=0, ge=0)
    n_enough: int = Field(default=0, ge=0)
    budget: int = Field(gt=0)
    seed: int = Field(ge=0)
    known: tuple[Task, ...] = Field(default=(), exclude=True)

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_defaults(dump(self), "n_enough")

    @property
    def n_wanted(self) -> int:
        """How many accepted tasks end the round; 0 for one that goes on to the end."""
        return self.n_unguided or self.n_enough

    @classmethod
    def unguided(cls, n: int, *, id: str = "round-0", seed: int = 0) -> Round:
        """A round that looks for ``n`` tasks anywhere in the training scenarios."""
        return cls(id=id, n_unguided=n, budget=4 * n, seed=seed)


class RoundResult(FrozenModel):
    """What one pass of evolution found and cost.

    Attributes:
        round_id: id of the round.
        accepted: tasks that passed every gate.
        held: tasks that passed every gate but wait for a person to release them.
        verdicts: one for every draft that was tried, and one for every context that was left out
            (gate ``advisor``, without a ``draft_id``).
        explored: how each context was explored; nothing by explorers that ask no model.
        usage: what asking models cost, by purpose.
        env_steps: env steps spent on exploration and on building and replaying drafts.
        gate_steps: those of them that gates spent on drafts.
        seconds: wall time.
    """

    round_id: str
    accepted: tuple[Task, ...] = ()
    held: tuple[Task, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    explored: tuple[Explored, ...] = ()
    usage: Mapping[str, Usage] = FrozenDict()
    env_steps: int = Field(default=0, ge=0)
    gate_steps: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """The verdicts on drafts, without those on contexts that were left out."""
        return tuple(verdict for verdict in self.verdicts if verdict.draft_id)
