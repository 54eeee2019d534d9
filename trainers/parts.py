"""The parts around the loop: its settings, its progress, and the seams it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.notes import NO_NOTES, Findings, Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.spend import ANSWERS, NO_USAGE, Usage
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.episodes.evaluation import Evaluation

Metrics = dict[str, float]


def training_success(numbers: Mapping[str, Any]) -> float | None:
    """Share of a step's episodes that solved their task; None if the learner does not tell.

    With dynamic sampling, of all that were run, also those of groups that were set aside.

    Args:
        numbers: metrics of a step.
    """
    found = numbers.get("success_before_filter", numbers.get("success"))
    return None if found is None else float(found)


class LoopConfig(FrozenModel):
    """How long, and how often.

    Attributes:
        max_steps: steps of the learner; None for no limit.
        max_env_steps: env steps of training, exploration and gate replays; None for no limit.
        groups_per_step: groups that one step learns from.
        rollout: how episodes advance: all of a step together, one step of each at a time
            (``lock_step``), or each at its own pace, in engines' own threads (``async``). The
            latter keeps the policy busy where engines are slow, and draws otherwise in every run.
        max_staleness: with ``async``, versions of the policy that a group may span, up to the one
            that learns from it. Above 0 episodes go on while the policy is updated. A group that
            spans more shows no boundary, and nothing is learned from it; in others, what older
            weights sampled has the policy as it is before the update for its old one, and is
            weighted by ``learner.importance_cap``.
        study_only_steps: so many first steps only roll out, record and study, and nothing is
            learned: for pass rates of the policy that training begins with, or for memories that it
            shall begin with. They cost env steps like all others.
        max_resamples: how often a step draws others in place of groups that teach nothing, because
            their advantages are all 0 (DAPO: 10); 0 learns from all groups.
        evolve_every_steps: steps after which the curriculum is asked for a round; 0 for never. It
            has its own idea of when one is due.
        evolve_at_last_step: ask after the last step too, though nothing trains on what it finds.
        evaluate_every_steps: steps between evaluations; 0 for none but the first and the last.
        evaluate_from: share of the budget that is spent before those between them begin.
        seed: seed of the episodes' envs; a run plans its rounds with it, too.
        seed_of_order: seed of the order in which tasks are drawn, beside the run's own: another
            number repeats a run from the same warm-up and the same first tasks. An arm may set it.
    """

    max_steps: int | None = Field(default=None, ge=0)
    max_env_steps: int | None = Field(default=None, ge=0)
    groups_per_step: int = Field(default=16, ge=1)
    rollout: Literal["lock_step", "async"] = "lock_step"
    max_staleness: int = Field(default=0, ge=0)
    study_only_steps: int = Field(default=0, ge=0)
    max_resamples: int = Field(default=0, ge=0)
    evolve_every_steps: int = Field(default=1, ge=0)
    evolve_at_last_step: bool = False
    evaluate_every_steps: int = Field(default=10, ge=0)
    evaluate_from: float = Field(default=0.0, ge=0, le=1)
    seed: int = Field(default=0, ge=0)
    seed_of_order: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _only_streams_are_stale(self) -> Self:
        if self.max_staleness and self.rollout == "lock_step":
            raise ValueError(
                f"max_staleness = {self.max_staleness} needs rollout = 'async': in lock step every "
                "group is of one version of the policy"
            )
        return self

    def over(self, state: LoopState) -> bool:
        """Whether the budget is spent."""
        limits = ((self.max_steps, state.step), (self.max_env_steps, state.env_steps))
        return any(limit is not None and done >= limit for limit, done in limits)

    def only_studies(self, state: LoopState) -> bool:
        """Return whether the step that is due only studies, and learns nothing."""
        return state.step < self.study_only_steps

    def spent(self, state: LoopState) -> float:
        """Share of the budget that is spent, at most 1; of two limits, of the nearer one."""
        limits = ((self.max_steps, state.step), (self.max_env_steps, state.env_steps))
        shares = [done / max(1, limit) for limit, done in limits if limit is not None]
        return min(1.0, max(shares, default=0.0))


class Learner(Protocol):
    """What learns from groups; ``trainers/grpo.py`` is one.

    Attributes:
        spent: share of the run's budget that is spent; the loop sets it before each update.
    """

    spent: float

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        ...

    def advantages(
        self, groups: Sequence[Group], notes: Notes = NO_NOTES
    ) -> Sequence[Sequence[Advantage]]:
        """One advantage for each trajectory of each group, or for each of its steps.

        Without notes it is asked which groups teach anything, before studies have run.
        """
        ...

    def update(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> Metrics:
        """Learn from groups; returns every term of the loss by name."""
        ...


class Landings(Protocol):
    """Remembers at which step each round that ran beside training was applied."""

    def step_of(self, round: Round) -> int | None:
        """The step that it was applied at in an earlier life of the run; None if it never was."""
        ...

    def remember(self, round: Round, step: int) -> None:
        """It is about to be applied at this step."""
        ...


class Events:
    """What a run does with what happens; override what you need."""

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        """A step's groups are recorded, and fired these; they are about to be learned from."""

    def on_notes(self, notes: Notes) -> None:
        """What studies have found in the step's groups, if there are any studies."""

    def on_credit(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> None:
        """Groups of the step are about to be learned from with these advantages."""

    def on_round(self, round: Round, result: RoundResult) -> None:
        """A round of evolution is applied."""

    def on_eval(self, evaluation: Evaluation) -> None:
        """An evaluation is over."""

    def on_step(self, metrics: Metrics) -> None:
        """A step is over, its round and evaluation included: the place for a checkpoint."""

    def should_stop(self) -> bool:
        """Asked at every step boundary."""
        return False


@dataclass(slots=True)
class LoopState:
    """How far a loop has come.

    Attributes:
        step: steps done.
        env_steps: env steps of training, exploration and gate replays.
        episodes: training episodes finished.
        evaluated: step of the latest evaluation; -1 before any.
        usage: what asking models has cost, by purpose.
    """

    step: int = 0
    env_steps: int = 0
    episodes: int = 0
    evaluated: int = -1
    usage: dict[str, Usage] = field(default_factory=dict)

    def count(self, result: RoundResult | Findings) -> None:
        """Take in what a round or a step's studies have cost."""
        self.env_steps += result.env_steps
        for purpose, usage in result.usage.items():
            self.usage[purpose] = self.usage.get(purpose, NO_USAGE) + usage

    @property
    def used(self) -> Usage:
        """What asking models has cost in all."""
        return sum(self.usage.values(), NO_USAGE)

    def metrics(self) -> Metrics:
        """All of it as numbers; those of a purpose as ``usage.PURPOSE.tokens`` and so on."""
        counts = {name: float(getattr(self, name)) for name in _COUNTS}
        used = {
            f"usage.{purpose}.{name}": float(getattr(usage, name))
            for purpose, usage in sorted(self.usage.items())
            for name in USED
        }
        return counts | used

    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
        usage = {purpose: usage.model_dump() for purpose, usage in self.usage.items()}
        return {name: getattr(self, name) for name in _COUNTS} | {"usage": usage}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LoopState:
        """Restore :meth:`to_json`, also one from before models were asked."""
        usage = {name: Usage.model_validate(used) for name, used in state.get("usage", {}).items()}
        return cls(**{**state, "usage": usage})


_COUNTS = ("step", "env_steps", "episodes", "evaluated")
USED = ("requests", "prompt_tokens", "completion_tokens", "usd", *ANSWERS)
"""What is told of a :class:`Usage`: what a resumed or replayed run has the same of."""
