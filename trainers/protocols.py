"""Settings, progress and protocols for the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, model_validator

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.notes import NO_NOTES, Findings, Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.spend import ANSWERS, NO_USAGE, Usage
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.saved import Count, Version, validate
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.trainers.segments import count_sampled

Metrics = dict[str, float]


def training_success(numbers: Mapping[str, Any]) -> float | None:
    """Return the share of a step's episodes that solved their task, or None if it is unknown.

    With dynamic sampling, the share covers all episodes, including those of dropped groups.
    """
    rate = numbers.get("success_before_filter", numbers.get("success"))
    return None if rate is None else float(rate)


class LoopConfig(FrozenModel):
    """Settings for the length of training and the frequency of rounds and evaluations."""

    max_steps: int | None = Field(default=None, ge=0)
    """Maximum number of learner steps; None for no limit."""
    max_env_steps: int | None = Field(default=None, ge=0)
    """Maximum number of env steps in training, exploration and gate replays; None for no limit."""
    groups_per_step: int = Field(default=16, ge=1)
    """Number of groups per learner step."""
    rollout: Literal["lock_step", "async"] = "lock_step"
    """Rollout mode. With ``lock_step``, all episodes of a step advance together, one env step at a
    time. With ``async``, each episode advances at its own pace in its engine's thread, which keeps
    the policy busy when engines are slow, but sampling then differs between runs."""
    max_staleness: int = Field(default=0, ge=0)
    """(async) Maximum number of policy updates between a group's first sample and the step that
    trains on the group. With a value above 0, episodes continue during updates. Groups that exceed
    the maximum are excluded from training and from the boundary signal. In all other groups, the
    old log-probabilities of tokens sampled with older weights are recomputed before the update (see
    ``learner.importance_cap``)."""
    study_only_steps: int = Field(default=0, ge=0)
    """Number of initial steps that collect and analyse rollouts without training the policy, for
    example to measure its initial pass rates or to build up the method's memory. They count towards
    the env-step budget like all other steps."""
    max_resamples: int = Field(default=0, ge=0)
    """Maximum number of extra draws per step that replace groups without a learning signal (all
    advantages are 0); DAPO uses 10. With 0, no groups are replaced."""
    evolve_every_steps: int = Field(default=1, ge=0)
    """Steps between requests for an evolution round; 0 for never. The curriculum decides whether a
    round is due."""
    evolve_at_last_step: bool = False
    """True to request an evolution round after the last step, even though no training follows."""
    evaluate_every_steps: int = Field(default=10, ge=0)
    """Steps between evaluations; 0 evaluates only at the start and the end."""
    evaluate_from: float = Field(default=0.0, ge=0, le=1)
    """Share of the budget that must be spent before intermediate evaluations start."""
    seed_of_order: int = Field(default=0, ge=0)
    """Extra seed for the order in which tasks are drawn. Change the seed to repeat a run with the
    same warm-up and initial tasks but a different task order. An arm may override the seed."""

    @model_validator(mode="after")
    def _require_async_for_staleness(self) -> Self:
        if self.max_staleness and self.rollout == "lock_step":
            raise ValueError(
                f"max_staleness = {self.max_staleness} needs rollout = 'async'; with 'lock_step', "
                "all rollouts of a group come from one policy version"
            )
        return self

    def is_over(self, state: LoopState) -> bool:
        """Return True if the budget is spent."""
        limits = ((self.max_steps, state.step), (self.max_env_steps, state.env_steps))
        return any(limit is not None and done >= limit for limit, done in limits)

    def is_study_only(self, state: LoopState) -> bool:
        """Return True if the current step only runs studies and does not learn."""
        return state.step < self.study_only_steps

    def spent_share(self, state: LoopState) -> float:
        """Return the share of the budget spent so far; with two limits, the larger share."""
        limits = ((self.max_steps, state.step), (self.max_env_steps, state.env_steps))
        shares = [done / max(1, limit) for limit, done in limits if limit is not None]
        return min(1.0, max(shares, default=0.0))


class GroupFilter(Protocol):
    """A strategy that decides which of a learner step's groups to learn from."""

    def select(self, n_groups: int, draw_batch: Callable[[], Sequence[Group]]) -> Sequence[Group]:
        """Draw batches of groups, and return the groups to learn from.

        Args:
            n_groups: ``loop.groups_per_step``, the number of groups in a batch.
            draw_batch: runs the episodes of one more batch, and returns its complete groups.
        """
        ...


class Learner(Protocol):
    """A learner that trains on groups; see ``trainers/grpo.py`` for an example.

    Attributes:
        spent: spent share of the run's budget; the loop sets it before each update.
    """

    spent: float

    @property
    def version(self) -> int:
        """Version of the policy being trained."""
        ...

    def advantages(
        self, groups: Sequence[Group], notes: Notes = NO_NOTES
    ) -> Sequence[Sequence[Advantage]]:
        """Return each group's advantages, one per trajectory or one per step.

        The loop calls it without notes, before studies run, to find groups to learn from.
        """
        ...

    def update(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> Metrics:
        """Learn from groups and return every loss term by name.

        Return as ``tokens_with_gradient`` the number of sampled tokens, or choices, that the loss
        acted on with an advantage other than 0. Without it, a run does not report its total.
        """
        ...


class TrainedLearner(Learner, Protocol):
    """A learner that a run creates from settings, saves and restores.

    A learner may also have the attributes ``average`` (averaged weights to evaluate; see
    :class:`~coevo_gym.trainers.update.optimizer.AveragedWeights`) and ``has_reference`` (True if it
    compares its policy with the policy that it was created with).

    Attributes:
        settings: class of its settings, a subclass of
            :class:`~coevo_gym.trainers.settings.LearnerSettings`.
    """

    settings: ClassVar[Any]

    def __init__(self, policy: Any, config: Any, *, seed: int) -> None:
        """Create a learner that trains ``policy``, with ``config`` of the class ``settings``."""
        ...

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return the state, without the policy, as numbers, text and tensors.

        Without ``reference``, leave out everything that depends only on the initial policy.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore the state from :meth:`state_dict`. The policy's own state is restored first."""
        ...


class RoundSteps(Protocol):
    """A record of the step at which each concurrent round was applied."""

    def step_of(self, round: Round) -> int | None:
        """Return the step at which an earlier run applied the round, or None if it did not."""
        ...

    def remember(self, round: Round, step: int) -> None:
        """Record that the round's result is about to be applied at this step."""
        ...


class Events:
    """Hooks that the training loop calls. Subclasses override the hooks they need."""

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        """Handle a step's recorded groups and the signals that they triggered."""

    def on_notes(self, notes: Notes) -> None:
        """Handle the analysis notes about a step's groups."""

    def on_advice(self, changes: Mapping[str, Sequence[AdviceState]]) -> None:
        """Handle changes to the advice in each memory. Keys are memory names."""

    def on_credit(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> None:
        """Handle the groups and advantages that the step is about to learn from."""

    def on_round(self, round: Round, result: RoundResult) -> None:
        """Handle an evolution round whose result has just been applied."""

    def on_eval(self, evaluation: Evaluation) -> None:
        """Handle a finished evaluation."""

    def on_step(self, metrics: Metrics) -> None:
        """Handle the end of a step, after its round and evaluation."""

    def should_stop(self) -> bool:
        """Return True to stop training. This method is called at every step boundary."""
        return False


@dataclass(slots=True)
class LoopState:
    """Progress of a training loop.

    Attributes:
        step: number of finished steps.
        env_steps: number of env steps in training, exploration and gate replays.
        episodes: number of finished training episodes.
        evaluated: step of the latest evaluation; -1 before the first.
        rollout_tokens: number of tokens that the policy sampled in finished training episodes,
            where a choice counts as one; None if unknown, because the run began before they were
            counted.
        gradient_tokens: number of these tokens that updates learned from with an advantage other
            than 0; None if unknown, because the learner does not count them.
        usage: model usage by purpose.
    """

    step: int = 0
    env_steps: int = 0
    episodes: int = 0
    evaluated: int = -1
    rollout_tokens: int | None = 0
    gradient_tokens: int | None = 0
    usage: dict[str, Usage] = field(default_factory=dict)

    def add_cost(self, result: RoundResult | Findings) -> None:
        """Add the cost of a round, or of the studies after a learner step, to the totals."""
        self.env_steps += result.env_steps
        for purpose, usage in result.usage.items():
            self.usage[purpose] = self.usage.get(purpose, NO_USAGE) + usage

    def add_rollout_tokens(self, groups: Iterable[Group]) -> None:
        """Add the tokens that the policy sampled in a step's recorded groups."""
        if self.rollout_tokens is not None:
            self.rollout_tokens += sum(count_sampled(t) for g in groups for t in g.trajectories)

    def add_gradient_tokens(self, metrics: Metrics) -> None:
        """Add the tokens that an update learned from, according to the learner's metrics."""
        learned = metrics.get("tokens_with_gradient")
        if learned is None or self.gradient_tokens is None:
            self.gradient_tokens = None
        else:
            self.gradient_tokens += int(learned)

    @property
    def total_usage(self) -> Usage:
        """Total model usage across all purposes."""
        return sum(self.usage.values(), NO_USAGE)

    def metrics(self) -> Metrics:
        """Return the progress as metrics, including usage as ``usage.PURPOSE.NAME``.

        Unknown counts are omitted. ``gradient_share`` is the share of ``gradient_tokens`` in
        ``rollout_tokens``.
        """
        known = {name: getattr(self, name) for name in (*_COUNTS, *_TOKENS)}
        counts = {name: float(count) for name, count in known.items() if count is not None}
        if self.gradient_tokens is not None and self.rollout_tokens:
            counts["gradient_share"] = self.gradient_tokens / self.rollout_tokens
        used = {
            f"usage.{purpose}.{name}": float(getattr(usage, name))
            for purpose, usage in sorted(self.usage.items())
            for name in USED
        }
        return counts | used

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        usage = {purpose: usage.model_dump() for purpose, usage in self.usage.items()}
        counts = {name: getattr(self, name) for name in (*_COUNTS, *_TOKENS)}
        return counts | {"usage": usage}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LoopState:
        """Restore a state from :meth:`to_json`."""
        usage = {name: Usage.model_validate(used) for name, used in state["usage"].items()}
        counts = {name: validate(Version, state[name]) for name in _COUNTS}
        tokens = {name: validate(Count | None, state.get(name)) for name in _TOKENS}
        return cls(**counts, **tokens, usage=usage)


_COUNTS = ("step", "env_steps", "episodes", "evaluated")
_TOKENS = ("rollout_tokens", "gradient_tokens")  # missing in states of runs that did not count them
USED = ("requests", "prompt_tokens", "completion_tokens", "usd", *ANSWERS)
"""Fields of :class:`Usage` to report, which are the same in a resumed or replayed run."""
