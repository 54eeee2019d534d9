"""A curriculum with a task pool, a selector that draws from it, and a rule for its growth.

    >>> import numpy as np
    >>> from coevo_gym import tasks
    >>> from coevo_gym.curricula.selectors.learnable import Learnable
    >>> curriculum = PoolCurriculum(tasks("webshop", "train")[:9], selector=Learnable())
    >>> len(curriculum.next(4, np.random.default_rng(0)))
    4

A custom selector or growth must implement its Protocol in ``core/seams.py``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from numpy.random import Generator
from pydantic import Field, ValidationError

from coevo_gym.core.errors import CoevoError, ConfigError, SplitLeakError
from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.kinds import registered_kinds
from coevo_gym.core.notes import Notes
from coevo_gym.core.registry import METHODS
from coevo_gym.core.seams import Growth, Selector
from coevo_gym.core.setting_sections import overlay_settings, unflatten
from coevo_gym.core.task import Task, canonical_json
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.growth.signal_growth import (
    GrowthConfig,
    InitialTasks,
    NoGrowth,
    SignalGrowth,
)
from coevo_gym.curricula.metrics import conversion_ratios, shares_of, step_shares
from coevo_gym.curricula.pool.embed import EMBEDDERS, Embedder, sentence_embedding_advice
from coevo_gym.curricula.pool.task_pool import TaskPool, require_trainable_with_goal
from coevo_gym.curricula.pool.task_stats import CAP, Outcomes
from coevo_gym.curricula.saved import Count, validate
from coevo_gym.curricula.selectors.adarft import AdaRFTConfig
from coevo_gym.curricula.selectors.band import BandConfig
from coevo_gym.curricula.selectors.base import Uniform, UniformConfig, draw_by_weight
from coevo_gym.curricula.selectors.learnable import LearnableConfig
from coevo_gym.curricula.selectors.learning_progress import ProgressConfig
from coevo_gym.curricula.selectors.plr import PLRConfig
from coevo_gym.curricula.selectors.sec import SECConfig
from coevo_gym.curricula.selectors.stages import StagesConfig
from coevo_gym.envs.tags import tags_of

logger = logging.getLogger(__name__)

SelectorConfig = Annotated[
    UniformConfig
    | StagesConfig
    | AdaRFTConfig
    | PLRConfig
    | LearnableConfig
    | ProgressConfig
    | SECConfig
    | BandConfig,
    Field(discriminator="kind"),
]
"""Settings of any selector; their ``make()`` creates it."""


class CoveredTags:
    """A counter of distinct tags in a pool. It reads each task only once.

    Tags may require a benchmark's data. If the data is missing or differs from the data that the
    tasks were made with, the counter returns None, because a metric must not stop a run.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._n = 0
        self._lost = False

    def count(self, tasks: Sequence[Task]) -> int | None:
        """Return the number of distinct tags.

        Args:
            tasks: the tasks from the last call in the same order, followed by any new tasks.

        Returns:
            The count, or None if a task's tags cannot be determined.
        """
        try:
            while self._n < len(tasks) and not self._lost:
                self._tags.update(tags_of(tasks[self._n]))
                self._n += 1
        except CoevoError as error:
            self._lost = True
            logger.warning("cannot count the tasks' tags: %s", error)
        return None if self._lost else len(self._tags)


_COUNTS = (
    "groups", "rounds", "contexts", "candidates", "accepted",
    "practice_steps", "explore_steps", "gate_steps",
)  # fmt: skip


class PoolCurriculum:
    """A curriculum with a task pool, a selector that draws from it, and a rule for its growth.

    It records which tasks were trained on, explored and accepted, which round is in progress and
    which rounds were applied, so selectors and growths only need to contain their own rules.

    Args:
        tasks: training tasks to start with. If there are any, the initial round is skipped.
        selector: weights the tasks; None for uniform weights.
        growth: plans rounds; None to detect signals and, if ``tasks`` is empty, find initial tasks.
        cap: number of visits after which the metrics count a task as used up; None for no limit.

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
        self.growth: Growth = growth or InitialTasks()
        self.selector.added(self.pool.tasks)
        self._outcomes = Outcomes(cap)
        self._outcomes.add(self.pool.tasks)
        self._covered = CoveredTags()
        self._planned: Round | None = None
        self._applied: dict[str, None] = {}
        self._initial_ids = {task.id for task in self.pool}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._signals = Counter[str]()

    def next(self, n: int, rng: Generator) -> list[Task]:
        """Draw tasks according to the selector's weights, without replacement if there are enough.

        Raises:
            ConfigError: if the pool is empty, or the selector's weights are invalid.
        """
        size = len(self.pool)
        if not size:
            raise ConfigError(
                "The task pool is empty. Pass tasks (PoolCurriculum(tasks, …)), or run an "
                "evolution round first: with EvolvingTaskSampler(…, evolve='manual'), "
                "call its evolve() method. If a round has already run, all its drafts were "
                "rejected: see the verdicts."
            )
        weights = self.selector.weights()
        if weights is None:
            indices = rng.choice(size, size=n, replace=n > size)
        elif len(weights) == size:
            indices = draw_by_weight(weights, n, rng)
        else:
            raise ConfigError(
                f"{type(self.selector).__name__} returned {len(weights)} weights for {size} "
                "tasks. Its weights() must return one weight per task, including added tasks."
            )
        return [self.pool[int(index)] for index in indices]

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Record finished groups; see :class:`~coevo_gym.core.seams.Curriculum`.

        Raises:
            SplitLeakError: if a group is not for training. No group is recorded in this case.
            TaskError: if a group's task is an open task. No group is recorded in this case.
        """
        for group in groups:
            require_trainable_with_goal(group.task, "record")
            if not all(isinstance(t, Trajectory) for t in group.trajectories):
                raise SplitLeakError(
                    f"{group.id} contains episodes that are not training episodes."
                )
        signals = self.growth.record(groups)
        self.selector.record(groups)
        self._outcomes.record(groups)
        self._signals.update(signal.kind for signal in signals)
        practised = (t for group in groups for t in group.trajectories)
        self._counts["practice_steps"] += sum(len(t.steps) for t in practised)
        self._counts["groups"] += len(groups)
        return signals

    def note(self, notes: Notes) -> None:
        """Pass the notes from a learner step to the selector and the growth rule."""
        self.selector.note(notes)
        self.growth.note(notes)

    def plan(self, rng: Generator) -> Round | None:
        """Return the due round, or None. A planned round stays due until it is applied."""
        if self._planned is None:
            due = self.growth.plan(self.pool.tasks, rng)
            if due is not None:
                known = {"id": self._new_round_id(), "known": tuple(self.pool)}
                self._planned = due.model_copy(update=known)
        return self._planned

    def apply(self, result: RoundResult) -> None:
        """Add a round's tasks to the pool, unless the round has already been applied.

        Raises:
            SplitLeakError: if an accepted task is not a training task; then the round is not
                applied.
        """
        if result.round_id in self._applied:
            return
        initial = not len(self.pool)
        added = self.pool.extend(result.accepted)
        self.selector.added(added)
        self._outcomes.add(added)
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
            self._counts["candidates"] += len(result.draft_verdicts)
            self._counts["accepted"] += len(result.accepted)
        self._counts["rounds"] += 1
        self._counts["explore_steps"] += result.env_steps - result.gate_steps
        self._counts["gate_steps"] += result.gate_steps

    def metrics(self) -> dict[str, float]:
        """Return metrics for the pool, training, signals and evolution rounds.

        ``tags_covered`` is the number of distinct tags in the pool, which is omitted if the tags
        cannot be determined. ``mixed_groups``, ``steps_all_fail``, ``reserve`` and similar metrics
        come from :class:`~coevo_gym.curricula.pool.task_stats.Outcomes`. ``share_practice_steps``,
        ``share_explore_steps`` and ``share_gate_steps`` are the shares of all env steps used for
        each purpose. ``yield``, ``pass_rate`` and ``conversion`` (see ``metrics.py``) exclude the
        unguided round that made the first pool. The selector's metrics begin with ``selector.``.
        """
        counts, n_tags = self._counts, self._covered.count(self.pool.tasks)
        fired = {kind.name: 0 for kind in registered_kinds() if kind.fires} | self._signals
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
            **conversion_ratios(
                signals=sum(fired.values()),
                contexts=counts["contexts"],
                candidates=counts["candidates"],
                accepted=counts["accepted"],
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
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
        """Restore the state from :meth:`state_dict`.

        Raises:
            ConfigError: if the parts of the state do not match.
            ValueError: if a value has the wrong type.
        """
        self.pool.load_state_dict(state["pool"])
        self.selector.load_state_dict(state["selector"])
        self.growth.load_state_dict(state["growth"])
        self._covered = CoveredTags()
        self._outcomes = Outcomes(self._outcomes.cap)
        self._outcomes.load_state_dict(state["outcomes"])
        self._initial_ids = set(validate(list[str], state["initial_ids"]))
        planned = validate(str | None, state["planned"])
        planned = None if planned is None else Round.model_validate_json(planned)
        self._planned = planned and planned.model_copy(update={"known": tuple(self.pool)})
        self._applied = dict.fromkeys(validate(list[str], state["applied"]))
        counts = validate(dict[str, Count], state["counts"])
        self._counts = {name: counts.get(name, 0) for name in _COUNTS}
        self._signals = Counter(validate(dict[str, Count], state["signals"]))
        weights = self.selector.weights() if len(self.pool) else None
        if weights is not None and len(weights) != len(self.pool):
            raise ConfigError(
                f"The saved selector has {len(weights)} tasks, but the pool has {len(self.pool)}."
            )

    def _new_round_id(self) -> str:
        number = len(self._applied)
        while f"round-{number}" in self._applied:
            number += 1
        return f"round-{number}"


class CurriculumConfig(GrowthConfig):
    """Settings for a task pool: its growth and the selection of tasks."""

    selector: SelectorConfig = UniformConfig()
    """Rule for selecting the next task from the pool."""
    embedder: Literal["auto", "words", "sentences"] = "auto"
    """Text embedding that methods use for similarity search. words: hashed counts of words and word
    pairs, without a model. sentences: a sentence-transformers model (requires the ``embed``
    extra). auto: sentences for language models if `coevo model fetch minilm` has been run, and
    otherwise words; the log says which one is used."""

    def make_embedder(self, *, reads: bool) -> Embedder:
        """Create the embedder that the settings select.

        Args:
            reads: True if the policy reads the search results, as language models do.
        """
        name = self.embedder
        if name == "auto":
            lacks = sentence_embedding_advice() if reads else ""
            name = "sentences" if reads and not lacks else "words"
            if lacks:
                logger.warning(
                    "Similarity search compares words, because sentence embeddings are not "
                    'available. %s, or set curriculum.embedder = "words".',
                    lacks,
                )
            else:
                logger.info("similarity search: embedder=%s", name)
        return EMBEDDERS[name]()

    @property
    def cap(self) -> int | None:
        """Number of visits after which a task is used up. The ``band`` selector can change it."""
        return self.selector.cap if isinstance(self.selector, BandConfig) else CAP

    def make_growth(self, native: Sequence[Task] | None = None) -> Growth:
        """Create the growth rule that the settings select. ``native`` is as in :meth:`make`."""
        if isinstance(self.growth, NoGrowth):
            return InitialTasks(self, native=native)
        return SignalGrowth(self, cap=self.cap, native=native)

    def make(
        self,
        tasks: Iterable[Task] = (),
        *,
        native: Sequence[Task] | None = None,
        selector: Selector | None = None,
        growth: Growth | None = None,
    ) -> PoolCurriculum:
        """Create a curriculum from these settings.

        Args:
            tasks: training tasks to start with.
            native: training tasks to plan targets from; None for all training tasks of the pool's
                benchmark once the pool has tasks.
            selector: a method's own selector; None for the selector in the settings.
            growth: a method's own growth rule; None for the rule in the settings.

        Raises:
            SplitLeakError: if a task is not a training task.
        """
        return PoolCurriculum(
            tasks,
            selector=self.selector.make() if selector is None else selector,
            growth=self.make_growth(native) if growth is None else growth,
            cap=self.cap,
        )


def make_curriculum(
    name: str,
    *,
    tasks: Sequence[Task] = (),
    native: Sequence[Task] | None = None,
    grows: bool = True,
    **settings: Any,
) -> PoolCurriculum:
    """Create the curriculum of the method with the given name.

    Args:
        name: name of the method; ``METHODS.names()`` lists all names.
        tasks: training tasks to start with.
        native: training tasks to plan targets from; see :meth:`CurriculumConfig.make`.
        grows: False for a task set that does not grow.
        **settings: other fields of :class:`CurriculumConfig`.

    Raises:
        ConfigError: if the name is unknown, or a setting is out of bounds.

    Example:
        >>> make_curriculum("plr").metrics()["pool_size"]
        0.0
    """
    own = unflatten(METHODS.load(name).sets).get("curriculum", {})
    try:
        base = CurriculumConfig(**settings).model_dump()
        config = CurriculumConfig(**overlay_settings(CurriculumConfig, base, own))
    except ValidationError as error:
        raise ConfigError(f"Invalid settings for the curriculum {name!r}: {error}") from error
    if not grows:
        config = config.model_copy(update={"growth": NoGrowth()})
    return config.make(tasks, native=native)
