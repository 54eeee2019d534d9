"""Growth where rollouts show weaknesses, and its controls (arXiv 2604.15840)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from numpy.random import Generator
from pydantic import Field, model_validator

from coevo_gym.core.evolution import Context, Round, RoundResult, Signal
from coevo_gym.core.notes import Notes
from coevo_gym.core.sections import overlay, variant, variants, with_kinds
from coevo_gym.core.task import FrozenModel, Task, canonical_json
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.choice import GUIDED, Anywhere, Blindly, Choice, Offer
from coevo_gym.curricula.growth.contexts import Weaknesses, context_of, weaknesses
from coevo_gym.curricula.growth.reserve import Reserve
from coevo_gym.curricula.growth.targets import Coverage, first_round
from coevo_gym.curricula.growth.when import When, WhenSignalled
from coevo_gym.curricula.pool.task_stats import CAP
from coevo_gym.curricula.signals.kinds import ALL_SIGNALS, BLIND, SignalName
from coevo_gym.curricula.signals.patterns import PATTERNS
from coevo_gym.curricula.signals.signals import Outcome, Reading, SignalDetector

MAX_SEED = 2**63


class NoGrowth(FrozenModel):
    """The first tasks stay the only ones: a static task set."""

    kind: Literal["none"] = "none"


class _Rounds(FrozenModel):
    kind: Any
    when: Literal["signals", "reserve"] = "signals"
    """Reason for a round. signals: a pending signal (the paper). reserve: a pool that holds too
    few groups to learn from; the round then tries as many drafts as are lacking."""
    every_groups: int = Field(default=320, gt=0)
    """Groups between two rounds, or looks at the reserve: the paper's 10 steps of 32 tasks."""
    drafts: int = Field(default=128, gt=0)
    """Most drafts that a round tries."""

    @property
    def most_places(self) -> int:
        """Most places that a round explores, the first round left aside."""
        return self.drafts


class _RoundsFromPractice(_Rounds):
    max_contexts: int = Field(default=32, gt=0)
    """Most places that a round explores, with ``when = "signals"``. With ``reserve`` it explores as
    many as it tries drafts."""

    @property
    def most_places(self) -> int:
        """Most places that a round explores, the first round left aside."""
        return self.drafts if self.when == "reserve" else self.max_contexts


class AnywhereGrowth(_Rounds):
    """Rounds explore anywhere in the training scenarios, until ``drafts`` are tried."""

    kind: Literal["anywhere"] = "anywhere"


class CoverageGrowth(_Rounds):
    """Rounds look for kinds of task that the pool has seldom, one draft for each target."""

    kind: Literal["coverage"] = "coverage"


class BlindGrowth(_RoundsFromPractice):
    """Rounds start from practised tasks, whatever happened on them."""

    kind: Literal["blind"] = "blind"


class GuidedGrowth(_RoundsFromPractice):
    """Rounds start where the agent is weak (the paper)."""

    kind: Literal["signals"] = "signals"
    contexts: Literal["signals", "coverage", "learnable", "progress", "mixed"] = "signals"
    """Starting points of a round. signals: rollouts on which signals fired (the paper). coverage:
    practised tasks least like those explored before. learnable: practised tasks that are solved
    about half of the time. progress: practised tasks near to which pass rates change. mixed: half
    signals, half coverage."""


Growths = Annotated[
    NoGrowth | AnywhereGrowth | CoverageGrowth | BlindGrowth | GuidedGrowth,
    Field(discriminator="kind"),
]
"""Settings of when and where rounds explore, by ``kind``."""


class DetectorConfig(FrozenModel):
    """The detector of signals, which reads rollouts with every kind of growth."""

    signals: tuple[SignalName, ...] = Field(default=ALL_SIGNALS, min_length=1)
    """The signals that are read."""
    window: int = Field(default=5, gt=0)
    """Visits of a task that forgetting looks back on."""
    visit: Reading = "max"
    """What forgetting reads of a visit: the largest outcome of its group, so that each single one
    counts, as in the paper's text; or their mean."""
    theta: float = Field(default=5.0, gt=0, le=100)
    """A behaviour is rare below this share of all episodes, in per cent."""
    n_min: int = Field(default=64, gt=0)
    """Fewest episodes in all before any is called rare."""
    min_support: int = Field(default=1, gt=0)
    """Fewest episodes with a behaviour before it is called rare."""
    outcome: Outcome = "success"
    """What signals read: the binary outcome or the benchmark's own score."""
    pattern: Literal["sequence", "set"] = "sequence"
    """How an episode's behaviour is described; see ``patterns.py``."""

    def make(self) -> SignalDetector:
        """Create the detector."""
        return SignalDetector(
            signals=self.signals,
            window=self.window,
            visit=self.visit,
            theta=self.theta,
            n_min=self.n_min,
            min_support=self.min_support,
            outcome=self.outcome,
            pattern_of=PATTERNS[self.pattern],
        )


OLDER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "evolve": "growth.kind",
        "contexts": "growth.contexts",
        "when": "growth.when",
        "evolve_every_groups": "growth.every_groups",
        "max_contexts_per_round": "growth.max_contexts",
        "drafts_per_round": "growth.drafts",
        **{name: f"detector.{name}" for name in DetectorConfig.model_fields},
    }
)
"""Names that settings of a curriculum had before growth was of kinds, and their names now."""
OLDER_KINDS: Mapping[str, str] = MappingProxyType(
    {"off": "none", "random": "anywhere", "guided": "signals"}
)
"""Values of ``evolve`` that have another name as kinds of growth."""


class GrowthConfig(FrozenModel):
    """Settings of :class:`SignalGrowth`."""

    initial_size: int = Field(default=100, gt=0)
    """Tasks to find before practice begins (the paper's N)."""
    initial: Literal["unguided", "coverage"] = "unguided"
    """Search for the first tasks. unguided: anywhere in the training scenarios (the paper), with
    four drafts for each task that is wanted. coverage: by targets that cover the most kinds of
    task, with three drafts each."""
    growth: Growths = GuidedGrowth()
    """When and where later rounds explore."""
    detector: DetectorConfig = DetectorConfig()
    """The detector of signals."""

    @model_validator(mode="before")
    @classmethod
    def _of_older_names(cls, data: Any) -> Any:
        """Read settings by the names that they had before growth was of kinds."""
        if not isinstance(data, Mapping):
            return data
        data = with_kinds(cls, data)
        if not data.keys() & OLDER_NAMES.keys():
            return data
        tree = {name: value for name, value in data.items() if name not in OLDER_NAMES}
        older: dict[str, dict[str, Any]] = {}
        for name in data.keys() & OLDER_NAMES.keys():
            section, _, new = OLDER_NAMES[name].partition(".")
            value = data[name]
            older.setdefault(section, {})[new] = (
                OLDER_KINDS.get(value, value) if name == "evolve" else value
            )
        growth = older.setdefault("growth", {})
        growth.setdefault("kind", tree.get("growth", {}).get("kind", GuidedGrowth().kind))
        if (kind := variant(variants(Growths), growth["kind"])) is not None:
            # All of them could be set, also those that the kind had no use for.
            older["growth"] = {k: v for k, v in growth.items() if k in kind.model_fields}
        return overlay(cls, tree, older)


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
        self.detector = config.detector.make()
        self.native, growth = native, config.growth
        self._choice: Choice = Anywhere()
        self._when: When | None = None
        if not isinstance(growth, NoGrowth):
            places = growth.most_places
            self._when = (
                Reserve(growth.every_groups, drafts=growth.drafts, cap=cap)
                if growth.when == "reserve"
                else WhenSignalled(growth.every_groups, drafts=growth.drafts, max_places=places)
            )
        match growth:
            case CoverageGrowth():
                self._choice = Coverage(native)
            case BlindGrowth():
                self._choice = Blindly()
            case GuidedGrowth():
                self._choice = GUIDED[growth.contexts]()
        self._pending: Weaknesses = {}
        self._practised: dict[str, Context] = {}

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Read the signals of finished groups."""
        signals = self.detector.detect(groups)
        explored = isinstance(self.config.growth, GuidedGrowth)
        self._pending.update(
            weaknesses(signals, groups, patterns=self.detector.patterns, bare=not explored)
        )
        if self._choice.looks_back:
            self._choice.record(groups)
            for group in groups:
                for last in group.trajectories[-1:]:
                    self._practised[group.task.id] = context_of(BLIND, group.task, last)
        if self._when is not None:
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
        due = None if self._when is None else self._when.due(pool, len(self._pending))
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
        """How much is pending, how many patterns were seen, and what forgetting would be.

        ``forgetting_by_max`` and ``forgetting_by_mean`` count the episodes for which forgetting
        fires where it reads single outcomes of a visit, and where it reads their mean.
        """
        return {
            **{f"forgetting_by_{how}": float(n) for how, n in self.detector.forgotten.items()},
            "pending_contexts": float(len(self._pending)),
            "distinct_patterns": float(len(self.detector.patterns)),
        }

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {
            "detector": self.detector.state_dict(),
            "pending": [_dump(context) for context in self._pending.values()],
            "practised": [_dump(context) for context in self._practised.values()],
            **(self._when.state_dict() if self._when else {}),
            "choice": self._choice.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, also one of before there was a choice."""
        self.detector.load_state_dict(state["detector"])
        pending = [Context.model_validate_json(text) for text in state["pending"]]
        practised = [Context.model_validate_json(text) for text in state["practised"]]
        self._pending = {(context.kind, context.task.id): context for context in pending}
        self._practised = {context.task.id: context for context in practised}
        if self._when:
            self._when.load_state_dict(state)
        if "choice" in state:
            self._choice.load_state_dict(state["choice"])


def _dump(context: Context) -> str:
    return canonical_json(context.model_dump(mode="json"))


def _seed(rng: Generator) -> int:
    return int(rng.integers(MAX_SEED))
