"""Growth where rollouts show weaknesses, and its controls (arXiv 2604.15840)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from numpy.random import Generator
from pydantic import Field

from coevo_gym.core.evolution import Context, Round, RoundResult, Signal
from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task, canonical_json
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.choice import Choice, Offer, choice_of
from coevo_gym.curricula.growth.contexts import Weaknesses, context_of, weaknesses
from coevo_gym.curricula.growth.reserve import Reserve
from coevo_gym.curricula.growth.targets import Coverage, first_round
from coevo_gym.curricula.growth.when import When, WhenSignalled
from coevo_gym.curricula.pool.task_stats import CAP
from coevo_gym.curricula.signals.kinds import ALL_SIGNALS, BLIND, SignalName
from coevo_gym.curricula.signals.patterns import PATTERNS
from coevo_gym.curricula.signals.signals import Outcome, SignalDetector

MAX_SEED = 2**63


class GrowthConfig(FrozenModel):
    """Settings of :class:`SignalGrowth`."""

    initial_size: int = Field(default=100, gt=0)
    """Tasks to find before practice begins (the paper's N)."""
    initial: Literal["unguided", "coverage"] = "unguided"
    """How they are looked for: anywhere in the training scenarios, without guidance (the paper); or
    by targets that are planned so that they cover the most kinds of task (``coverage``)."""
    evolve: Literal["off", "random", "blind", "guided", "coverage"] = "guided"
    """Where a round explores: ``guided`` follows the signals; ``blind`` starts from practised tasks
    without looking at what happened on them; ``random`` from anywhere in the training scenarios;
    ``coverage`` looks for kinds of task that the pool has seldom, one draft for each target;
    ``off`` never evolves (a static task set)."""
    contexts: Literal["signals", "coverage", "learnable", "progress", "mixed"] = "signals"
    """What a guided round starts from: where ``signals`` fired (the paper), or practised tasks that
    are least like those explored before (``coverage``), that are solved about half of the time
    (``learnable``) or near to which pass rates change (``progress``); ``mixed`` takes half of its
    places from signals and half from coverage."""
    when: Literal["signals", "reserve"] = "signals"
    """What makes a round due: ``signals``, as soon as one is pending (the paper); or ``reserve``,
    when the pool holds too few groups to learn from, and as many drafts as are lacking. Both look
    every ``evolve_every_groups`` groups, and neither says where a round explores."""
    evolve_every_groups: int = Field(default=320, gt=0)
    """Groups between two rounds: the paper's 10 steps of 32 tasks."""
    max_contexts_per_round: int = Field(default=32, gt=0)
    """Most places a round explores; of ``when="signals"``. With ``reserve``, and where targets are
    looked for, it explores as many as it tries drafts."""
    drafts_per_round: int = Field(default=128, gt=0)
    """Most drafts a round tries; the first one tries four for each task it looks for, and three if
    it looks for targets."""
    signals: tuple[SignalName, ...] = Field(default=ALL_SIGNALS, min_length=1)
    """The signals that are read."""
    window: int = Field(default=5, gt=0)
    """Visits of a task that forgetting looks back on."""
    visit: Literal["mean", "max"] = "mean"
    """What a visit leaves in that window: the mean or the largest outcome of its group."""
    theta: float = Field(default=5.0, gt=0, le=100)
    """A behaviour is rare below this share of all episodes, in per cent."""
    n_min: int = Field(default=64, gt=0)
    """Fewest episodes in all before any is called rare."""
    min_support: int = Field(default=1, gt=0)
    """Fewest episodes with a behaviour before it is called rare."""
    outcome: Outcome = "success"
    """What signals read: the binary outcome or the benchmark's own score."""
    max_staleness: int = Field(default=0, ge=0)
    """Most versions of the policy that a group may span and still show a boundary."""
    pattern: Literal["sequence", "set"] = "sequence"
    """How an episode's behaviour is described; see ``patterns.py``."""

    @property
    def most_places(self) -> int:
        """Most places that a round explores, the first one left aside."""
        if self.evolve in ("random", "coverage") or self.when == "reserve":
            return self.drafts_per_round
        return self.max_contexts_per_round


class SignalGrowth:
    """Rounds from where forgetting, boundary and rare signals fired, and the controls of that.

    The first round, while the pool is empty, is unguided or looks for targets. When later ones are
    due and how much they try is a part of its own (``when.py``), and so is where they explore
    (``choice.py``, ``targets.py``). With ``when="signals"`` the controls differ in *where* a round
    explores that the same signals make due: ``blind`` explores as many contexts as ``guided``;
    ``random`` goes on until ``drafts_per_round`` are tried, which is more while few signals are
    pending; ``coverage`` looks for as many targets.

    With ``when="reserve"`` a round may want more places than there are contexts. A guided one then
    explores each context that is pending, and they share its drafts equally; what it does not find
    is still lacking at the next look. A blind one comes back to the same tasks. Where there is no
    context at all, a round is unguided.

    Args:
        config: the settings.
        cap: visits after which a task is used up, for ``when="reserve"``; None for no end.
        native: training tasks that targets are planned from; None for all of the pool's benchmark,
            once there is a pool.

    Example:
        >>> import numpy as np
        >>> growth = SignalGrowth(GrowthConfig(initial_size=20))
        >>> growth.plan([], np.random.default_rng(0)).n_unguided
        20
    """

    def __init__(
        self,
        config: GrowthConfig | None = None,
        *,
        cap: int | None = CAP,
        native: Sequence[Task] | None = None,
    ) -> None:
        self.config = config = config or GrowthConfig()
        self.detector = SignalDetector(
            signals=config.signals,
            window=config.window,
            visit=config.visit,
            theta=config.theta,
            n_min=config.n_min,
            min_support=config.min_support,
            outcome=config.outcome,
            max_staleness=config.max_staleness,
            pattern_of=PATTERNS[config.pattern],
        )
        every, drafts = config.evolve_every_groups, config.drafts_per_round
        self._when: When = (
            Reserve(every, drafts=drafts, cap=cap)
            if config.when == "reserve"
            else WhenSignalled(every, drafts=drafts, max_places=config.max_contexts_per_round)
        )
        self.native = native
        self._choice: Choice = (
            Coverage(native)
            if config.evolve == "coverage"
            else choice_of(config.evolve, config.contexts)
        )
        self._pending: Weaknesses = {}
        self._practised: dict[str, Context] = {}

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Read the signals of finished groups."""
        signals = self.detector.detect(groups)
        explored = self.config.evolve == "guided"
        self._pending.update(weaknesses(signals, groups, bare=not explored))
        if self._choice.looks_back:
            self._choice.record(groups)
            for group in groups:
                for last in group.trajectories[-1:]:
                    self._practised[group.task.id] = context_of(BLIND, group.task, last)
        self._when.record(groups)
        return signals

    def plan(self, pool: Sequence[Task], rng: Generator) -> Round | None:
        """The round that is due, which uses up what is pending; None if none is.

        Raises:
            ConfigError: if the first tasks are to be found by targets, and there are no native ones
                to plan them from.
        """
        config = self.config
        if not len(pool):
            return first_round(
                config.initial_size, config.initial, native=self.native or (), seed=_seed(rng)
            )
        if config.evolve == "off":
            return None
        due = self._when.due(pool, len(self._pending))
        if due is None:
            return None
        pending, practised = list(self._pending.values()), list(self._practised.values())
        offer = Offer(pending, practised, pool, due.drafts)
        contexts = self._choice.choose(offer, due.places, rng)
        self._pending, self._practised = {}, {}
        return Round(
            id="",
            contexts=tuple(contexts),
            n_unguided=0 if contexts else due.drafts,
            budget=due.drafts,
            seed=_seed(rng),
        )

    def apply(self, result: RoundResult) -> None:
        """What a round found changes nothing about where the next one explores."""

    def note(self, notes: Notes) -> None:
        """Signals are read from rollouts alone."""

    def metrics(self) -> dict[str, float]:
        """How much is pending, and how many patterns of behaviour were seen."""
        return {
            "pending_contexts": float(len(self._pending)),
            "distinct_patterns": float(len(self.detector.patterns)),
        }

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {
            "detector": self.detector.state_dict(),
            "pending": [_dump(context) for context in self._pending.values()],
            "practised": [_dump(context) for context in self._practised.values()],
            **self._when.state_dict(),
            "choice": self._choice.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, also one of before there was a choice."""
        self.detector.load_state_dict(state["detector"])
        pending = [Context.model_validate_json(text) for text in state["pending"]]
        practised = [Context.model_validate_json(text) for text in state["practised"]]
        self._pending = {(context.kind, context.task.id): context for context in pending}
        self._practised = {context.task.id: context for context in practised}
        self._when.load_state_dict(state)
        if "choice" in state:
            self._choice.load_state_dict(state["choice"])


def _dump(context: Context) -> str:
    return canonical_json(context.model_dump(mode="json"))


def _seed(rng: Generator) -> int:
    return int(rng.integers(MAX_SEED))
