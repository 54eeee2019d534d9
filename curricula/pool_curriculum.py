"""A curriculum is a pool, a selector that draws from it, and a growth that adds to it.

    >>> import numpy as np
    >>> from coevo_gym import tasks
    >>> from coevo_gym.curricula.selectors.learnable import Learnable
    >>> curriculum = PoolCurriculum(tasks("webshop", "train")[:9], selector=Learnable())
    >>> len(curriculum.next(4, np.random.default_rng(0)))
    4

A selector or a growth of your own needs the methods of its Protocol in ``core/seams.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError, SplitLeakError
from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.kinds import kinds
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Growth, Selector
from coevo_gym.core.task import Task, canonical_json
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.growth.signal_growth import GrowthConfig, NoGrowth, SignalGrowth
from coevo_gym.curricula.metrics import conversion, shares_of, step_shares
from coevo_gym.curricula.pool.covered import CoveredTags
from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder, SentenceEmbedder
from coevo_gym.curricula.pool.outcomes import Outcomes
from coevo_gym.curricula.pool.pool import TaskPool, require_practised
from coevo_gym.curricula.pool.task_stats import CAP
from coevo_gym.curricula.saved import Count, read
from coevo_gym.curricula.selectors.band import BandConfig
from coevo_gym.curricula.selectors.draw import draw
from coevo_gym.curricula.selectors.settings import SelectorConfig
from coevo_gym.curricula.selectors.uniform import Uniform, UniformConfig

_COUNTS = (
    "groups", "rounds", "contexts", "candidates", "accepted",
    "practice_steps", "explore_steps", "gate_steps",
)  # fmt: skip
_OF_GROWTH = ("detector", "pending", "practised", "groups_since_round")
"""Where a curriculum was one class, these lay beside its pool."""


class PoolCurriculum:
    """Practises a pool of training tasks: which ones a selector says, and more by a growth.

    It keeps the books: what was practised, explored and accepted, which round is in flight and
    which ones are applied. So selectors and growths know only their own rules.

    Args:
        tasks: training tasks to start from. With any, no unguided round comes first.
        selector: weighs the tasks; None for uniform.
        growth: plans rounds; None for one that only reads signals, and looks for a first task set
            where there is none.
        cap: visits after which its metrics take a task for used up; None for no end.

    Raises:
        SplitLeakError: if a task is not a training task.
    """

    def __init__(
        self,
        tasks: Iterable[Task] = (),
        *,
        selector: Selector | None = None,
        growth: Growth | None = None,
        cap: int | None = CAP,
    ) -> None:
        self.pool = TaskPool(tasks)
        self.selector: Selector = selector or Uniform()
        self.growth: Growth = growth or SignalGrowth(GrowthConfig(growth=NoGrowth()))
        self.selector.added(self.pool.tasks)
        self._outcomes = Outcomes(cap)
        self._outcomes.added(self.pool.tasks)
        self._covered = CoveredTags()
        self._planned: Round | None = None
        self._applied: dict[str, None] = {}
        self._initial_ids = {task.id for task in self.pool}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._signals: dict[str, int] = {}

    def next(self, n: int, rng: Generator) -> list[Task]:
        """Tasks drawn from the pool by weight, each at most once as long as there are enough.

        Raises:
            ConfigError: if the pool is empty, or the selector's weights are none.
        """
        size = len(self.pool)
        if not size:
            raise ConfigError(
                "The task pool is empty. Start with tasks (PoolCurriculum(tasks, …)), or run a "
                "round of evolution first: EvolvingTaskSampler(…, evolve='manual') leaves that to "
                "its evolve() method. If a round has run, its explorer found no task that passed "
                "the gates: see the verdicts."
            )
        weights = self.selector.weights()
        if weights is None:
            drawn = rng.choice(size, size=n, replace=n > size)
        elif len(weights) == size:
            drawn = draw(weights, n, rng)
        else:
            raise ConfigError(
                f"{type(self.selector).__name__} gave {len(weights)} weights for {size} tasks. "
                "Its added() must add one for each task."
            )
        return [self.pool[int(index)] for index in drawn]

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Take in finished groups; see :class:`~coevo_gym.core.seams.Curriculum`.

        Raises:
            SplitLeakError: if a group is not training; nothing is recorded then.
            TaskError: if a group's task is an open one; nothing is recorded then.
        """
        for group in groups:
            require_practised(group.task, "record")
            if not all(isinstance(t, Trajectory) for t in group.trajectories):
                raise SplitLeakError(f"{group.id} holds episodes that are not training episodes.")
        signals = self.growth.record(groups)
        self.selector.record(groups)
        self._outcomes.record(groups)
        for signal in signals:
            self._signals[signal.kind] = self._signals.get(signal.kind, 0) + 1
        practised = (t for group in groups for t in group.trajectories)
        self._counts["practice_steps"] += sum(len(t.steps) for t in practised)
        self._counts["groups"] += len(groups)
        return signals

    def note(self, notes: Notes) -> None:
        """Hand a step's notes to selector and growth."""
        self.selector.note(notes)
        self.growth.note(notes)

    def plan(self, rng: Generator) -> Round | None:
        """The round that is due, or None; it is given again until its result is applied."""
        if self._planned is None:
            due = self.growth.plan(self.pool.tasks, rng)
            if due is not None:
                known = {"id": self._round_id(), "known": tuple(self.pool)}
                self._planned = due.model_copy(update=known)
        return self._planned

    def apply(self, result: RoundResult) -> None:
        """Grow the pool by a round's tasks; a round that was applied before is ignored.

        Raises:
            SplitLeakError: if an accepted task is not a training task; nothing is applied then.
        """
        if result.round_id in self._applied:
            return
        initial = not len(self.pool)
        added = self.pool.extend(result.accepted)
        self.selector.added(added)
        self._outcomes.added(added)
        self.growth.apply(result)
        self._applied[result.round_id] = None
        contexts = {verdict.context_id for verdict in result.verdicts}
        if self._planned is not None and self._planned.id == result.round_id:
            contexts |= {context.id for context in self._planned.contexts}
            self._planned = None
        if initial:
            self._initial_ids = {task.id for task in added}
        else:
            self._counts["contexts"] += len(contexts)
            self._counts["candidates"] += len(result.judged)
            self._counts["accepted"] += len(result.accepted)
        self._counts["rounds"] += 1
        self._counts["explore_steps"] += result.env_steps - result.gate_steps
        self._counts["gate_steps"] += result.gate_steps

    def metrics(self) -> dict[str, float]:
        """Numbers about the pool, what was practised, the signals and what rounds made of them.

        ``tags_covered`` counts what the pool's tasks are about; it is left out where that cannot be
        told. ``mixed_groups``, ``steps_all_fail`` and the like, and ``reserve``, are those of
        :class:`~coevo_gym.curricula.pool.outcomes.Outcomes`. ``share_practice_steps``,
        ``share_explore_steps`` and ``share_gate_steps`` say what the env steps of all rounds and
        groups were spent on. ``yield``, ``pass_rate`` and ``conversion`` (see ``metrics.py``) leave
        out the unguided round that made the first pool. What the selector tells begins with
        ``selector.``.
        """
        counts, n_tags = self._counts, self._covered.count(self.pool.tasks)
        fired = {kind.name: 0 for kind in kinds() if kind.fires} | self._signals
        ratios = conversion(
            signals=sum(fired.values()),
            contexts=counts["contexts"],
            candidates=counts["candidates"],
            accepted=counts["accepted"],
        )
        return {
            "pool_size": float(len(self.pool)),
            "evolved": float(len(self.pool) - len(self._initial_ids)),
            **({} if n_tags is None else {"tags_covered": float(n_tags)}),
            **self._outcomes.metrics(),
            **self.growth.metrics(),
            **{f"selector.{name}": value for name, value in self.selector.metrics().items()},
            **{name: float(count) for name, count in counts.items()},
            **{f"signals_{kind}": float(count) for kind, count in fired.items()},
            **{f"share_{kind}": share for kind, share in shares_of(fired).items()},
            **step_shares(
                practice=counts["practice_steps"],
                explore=counts["explore_steps"],
                gate=counts["gate_steps"],
            ),
            "yield": ratios.candidates_per_context,
            "pass_rate": ratios.pass_rate,
            "conversion": ratios.conversion,
        }

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        planned = self._planned and canonical_json(self._planned.model_dump(mode="json"))
        return {
            "pool": self.pool.state_dict(),
            "selector": self.selector.state_dict(),
            "growth": self.growth.state_dict(),
            "outcomes": self._outcomes.state_dict(),
            "initial_ids": sorted(self._initial_ids),
            "planned": planned,
            "applied": list(self._applied),
            "counts": dict(self._counts),
            "signals": dict(self._signals),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, also an older one.

        Before outcomes were kept, nothing was counted by outcome; those counts begin there. Still
        earlier, curricula were not made of parts.

        Raises:
            ConfigError: if its parts do not fit together.
            ValueError: if a value is of another type.
        """
        self.pool.load_state_dict(state["pool"])
        if "growth" in state:
            self.selector.load_state_dict(state["selector"])
            self.growth.load_state_dict(state["growth"])
        else:
            self.selector.added(self.pool.tasks)
            self.growth.load_state_dict({name: state[name] for name in _OF_GROWTH if name in state})
        self._covered = CoveredTags()
        self._outcomes = Outcomes(self._outcomes.cap)
        if "outcomes" in state:
            self._outcomes.load_state_dict(state["outcomes"])
        else:
            self._outcomes.added(self.pool.tasks)
        self._initial_ids = set(read(list[str], state["initial_ids"]))
        planned = state["planned"] and Round.model_validate_json(state["planned"])
        self._planned = planned and planned.model_copy(update={"known": tuple(self.pool)})
        self._applied = dict.fromkeys(read(list[str], state["applied"]))
        counts = read(dict[str, Count], state["counts"])
        self._counts = {name: counts.get(name, 0) for name in _COUNTS}
        self._signals = read(dict[str, Count], state.get("signals", {})) or _signals_in(counts)
        weights = self.selector.weights()
        if weights is not None and len(weights) != len(self.pool):
            raise ConfigError(
                f"The saved selector has {len(weights)} tasks, and the pool {len(self.pool)}."
            )

    def _round_id(self) -> str:
        number = len(self._applied)
        while f"round-{number}" in self._applied:
            number += 1
        return f"round-{number}"


class CurriculumConfig(GrowthConfig):
    """Settings of a pool: how it grows, and what is drawn from it."""

    selector: SelectorConfig = UniformConfig()
    """Which task of the pool is practised next."""
    embedder: Literal["words", "sentences"] = "words"
    """Vectors of texts that a method searches by likeness. words: hashed counts of words and word
    pairs, which need no model. sentences: a sentence-transformers model, of the extra ``embed``."""

    def make_embedder(self) -> Embedder:
        """Create what turns texts into vectors."""
        return HashingEmbedder() if self.embedder == "words" else SentenceEmbedder()

    @property
    def cap(self) -> int | None:
        """Visits after which a task is used up: those that the selector ``band`` goes by, or 8."""
        return self.selector.cap if isinstance(self.selector, BandConfig) else CAP

    def make(
        self,
        tasks: Iterable[Task] = (),
        *,
        native: Sequence[Task] | None = None,
        selector: Selector | None = None,
    ) -> PoolCurriculum:
        """The curriculum.

        Args:
            tasks: training tasks to start from.
            native: training tasks that targets are planned from, where rounds look for targets;
                None for all of the pool's benchmark, once there is a pool.
            selector: one of a method's own; None for that of the settings.

        Raises:
            SplitLeakError: if a task is not a training task.
        """
        growth = SignalGrowth(self, cap=self.cap, native=native)
        selector = self.selector.make() if selector is None else selector
        return PoolCurriculum(tasks, selector=selector, growth=growth, cap=self.cap)


def _signals_in(counts: Mapping[str, int]) -> dict[str, int]:
    """Signals by kind, where they were counted with all else."""
    prefix = "signals_"
    return {
        name.removeprefix(prefix): n for name, n in counts.items() if name.startswith(prefix) and n
    }
