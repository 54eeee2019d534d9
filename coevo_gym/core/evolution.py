"""Data models for one round of evolution: signal → context → draft → verdict.

All models are frozen and convert to and from JSON, so that a round can be stored and replayed.
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
    parse_models,
)


def _drop_empty_fields(dumped: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Drop the given fields if they are empty, so that content hashes do not depend on them."""
    return {name: value for name, value in dumped.items() if value or name not in fields}


def digest(value: Any) -> str:
    """Return a short content hash of a JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


class Signal(FrozenModel):
    """A weakness detected in one trajectory.

    Attributes:
        kind: kind of the weakness (``core/kinds.py`` has its label and colour).
        task_id: id of the trajectory's task.
        group_id: id of the trajectory's group.
        index: position of the trajectory within its group.
        evidence: the values that triggered the rule.
    """

    kind: str = Field(pattern=KIND_NAME)
    task_id: str
    group_id: str
    index: int = Field(ge=0)
    evidence: JsonObject = FrozenDict()


class Exchange(FrozenModel):
    """One action and its result.

    Attributes:
        action: the action sent to the env.
        observation: the observation after the action.
        error_kind: reason the action had no effect, or "".
    """

    action: Text
    observation: Text
    error_kind: str = ""


class ContextBrief(FrozenModel):
    """A summary of a weak rollout, written for an explorer (CoEvolve, figure 11).

    Attributes:
        summary: summary of the rollout, based on its evidence.
        failure_cause: cause of its failure; "" if it succeeded.
        instability_pattern: reason why outcomes vary between attempts.
        focus_pattern: operations to focus on.
        exploration_objectives: concrete things to try.
        do_not_repeat: approaches that did not work.
    """

    summary: Text
    failure_cause: Text = ""
    instability_pattern: Text = ""
    focus_pattern: tuple[Text, ...] = ()
    exploration_objectives: tuple[Text, ...] = ()
    do_not_repeat: tuple[Text, ...] = ()


class Attempt(FrozenModel):
    """A summary of a rollout, for benchmarks that propose tasks themselves.

    Attributes:
        actions: the agent's actions.
        score: the score in [0, 1].
        success: True if the task was solved.
    """

    actions: tuple[Text, ...]
    score: float
    success: bool

    @property
    def answer(self) -> str:
        """The last action, or ""."""
        return self.actions[-1] if self.actions else ""


class Context(FrozenModel):
    """The information given to an explorer about one weakness or one target.

    Attributes:
        kind: reason to explore: the signal's kind, or another name, such as ``unguided`` (without
            guidance), ``blind`` (a randomly drawn task) or ``target``.
        task: the training task to start from.
        actions: the agent's actions in the rollout; () without a rollout.
        success: True if that rollout succeeded.
        summary: the weakness in a sentence.
        evidence: the rollout's actions and results, truncated to a size limit.
        last_observation: the observation after its last action.
        behaviour: the benchmark's symbols for that rollout's steps, in order, without repeats.
        contrast: actions of a rollout in the same group with the opposite outcome, if there is one.
        known: requests that already exist in this world; filled in by the evolver.
        target: tags of the wanted task (``envs/tags.py``); () for any task.
        near: tags that an unguided explorer should stay close to; filled in by the evolver.
        usual: the most common behaviours and their counts; set for rare signals only.
        attempts: all rollouts of the group, if the benchmark proposes new tasks itself.
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
    attempts: tuple[Attempt, ...] = ()

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_empty_fields(dump(self), "target", "near", "usual", "attempts")

    @property
    def id(self) -> str:
        """A short hash of this context's kind, task, actions, outcome, summary and target."""
        content = [self.kind, self.task.id, self.actions, self.success, self.summary]
        return digest([*content, self.target] if self.target else content)


class Walk(FrozenModel):
    """One run of an explorer, starting from a context.

    Attributes:
        context_id: id of the context.
        number: 0, 1, …, the walk's index among the walks from that context.
        exchanges: actions and their results.
        opening: text shown to the explorer before its first action.
    """

    context_id: str
    number: int = Field(ge=0)
    exchanges: tuple[Exchange, ...]
    opening: Text = ""

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _drop_empty_fields(dump(self), "opening")


class Proposal(FrozenModel):
    """A task proposed by a model after exploration, in a form common to all benchmarks.

    Attributes:
        description: the goal in a sentence.
        turns: the user's texts, one per turn; most benchmarks have a single turn.
        actions: actions that, according to the model, reach the goal from the start.
        confidence: the model's confidence that they do, in [0, 1].
        done_when: a description of how to recognise that the goal is reached.
    """

    description: Text
    turns: tuple[Text, ...] = Field(min_length=1)
    actions: tuple[Text, ...]
    confidence: float = Field(ge=0, le=1)
    done_when: Text = ""

    @property
    def id(self) -> str:
        """A short content hash of the proposal."""
        return digest(self.model_dump(mode="json"))


class Draft(FrozenModel):
    """A proposed, unverified task: a request, a world, and a claimed solution.

    Attributes:
        benchmark: name of the benchmark.
        scenario: the scenario that it claims to belong to.
        instruction: the request to the agent.
        world: data that starts the engine.
        solution: actions that claim to solve it.
        subset: the benchmark's own name for a part of its tasks, or "".
        parents: ids of the tasks that it was derived from.
        context_id: id of the explorer's context, or "".
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
    def _parse_models(cls, data: Any) -> Any:
        return parse_models(data, "world")

    @property
    def id(self) -> str:
        """A short content hash of the draft."""
        return digest(self.model_dump(mode="json"))


class Check(NamedTuple):
    """A gate that a task draft has passed.

    Attributes:
        gate: name of the gate.
        said: the gate's remark on the draft, or "".
    """

    gate: str
    said: str = ""


class Verdict(FrozenModel):
    """The outcome for one draft: accepted, or rejected by a gate with a reason.

    Attributes:
        draft_id: id of the draft (or of the raw text if it could not be parsed as a draft).
        context_id: id of the context that it was drafted from.
        accepted: True if it passed every gate.
        gate: the gate that rejected it; "" if accepted.
        reason: reason for the rejection; "" if accepted.
        task_id: id of the built task; "" if it was never built.
        draft: the draft as JSON, so that a rejection can be studied.
        proposal: the model's proposal as JSON; empty for drafts not made by a model.
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


def find_instruction(draft: Mapping[str, Any], proposal: Mapping[str, Any]) -> str:
    """Return the instruction found in a JSON draft or its proposal. Return "" if there is none."""
    turns = " / ".join(map(str, proposal.get("turns", ())))
    text = draft.get("instruction") or turns or proposal.get("description") or draft.get("text")
    return str(text or "")


class Explored(FrozenModel):
    """A record of how one context was explored, for reports.

    Attributes:
        context: the context.
        brief: the summary of its rollout; None if there is none.
        walks: the walks.
        problems: descriptions of deviations from the plan, such as the use of a fallback.
    """

    context: Context
    brief: ContextBrief | None = None
    walks: tuple[Walk, ...] = ()
    problems: tuple[Text, ...] = ()


class Round(FrozenModel):
    """The specification of one round of evolution.

    Attributes:
        id: id that is unique within a curriculum, in order: ``round-0``, ``round-1``, …
        contexts: contexts to explore.
        n_unguided: number of tasks to find without any context (CoEvolve's D_0).
        n_enough: with contexts, the number of accepted tasks that ends the round; 0 to explore all
            contexts.
        budget: maximum number of drafts.
        seed: seed of all randomness in the round.
        known: tasks already in the pool, for the duplicate gate. They are left out of the JSON,
            because the curriculum that planned the round knows them.
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
        return _drop_empty_fields(dump(self), "n_enough")

    @property
    def n_wanted(self) -> int:
        """The number of accepted tasks after which the round ends. 0 explores every context."""
        return self.n_unguided or self.n_enough

    @classmethod
    def unguided(cls, n: int, *, id: str = "round-0", seed: int = 0) -> Round:
        """Create a round that explores without guidance until ``n`` tasks are accepted."""
        return cls(id=id, n_unguided=n, budget=4 * n, seed=seed)


class RoundResult(FrozenModel):
    """The tasks, verdicts and costs of one round of evolution.

    Attributes:
        round_id: id of the round.
        accepted: tasks that passed every gate.
        held: tasks that passed every gate but wait for a user to release them.
        verdicts: one per draft, and one per skipped context (gate ``advisor``, without a
            ``draft_id``).
        explored: record of each context's exploration; empty for explorers without a model.
        usage: cost of model requests, by purpose.
        env_steps: env steps spent on exploration and on building and replaying drafts.
        gate_steps: the part of ``env_steps`` that gates spent on drafts.
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
    def draft_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on drafts, leaving out the verdicts on skipped contexts."""
        return tuple(verdict for verdict in self.verdicts if verdict.draft_id)
