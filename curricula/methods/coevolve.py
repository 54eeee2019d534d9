"""CoEvolve: a task pool that grows where the agent is weak (arXiv 2604.15840).

The pool starts from unguided exploration. While the agent practises it, forgetting, boundary and
rare signals are read from the rollouts; every so many groups they become the contexts of a round
of evolution, whose proven tasks join the pool. The baselines and the controls of the paper are
the same class with ``evolve`` set otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from numpy.random import Generator
from pydantic import Field

from coevo_gym.core.errors import ConfigError, SplitLeakError
from coevo_gym.core.evolution import Context, ContextKind, Round, RoundResult, Signal, SignalKind
from coevo_gym.core.task import FrozenModel, Task, canonical_json
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.metrics import conversion, signal_shares, step_shares
from coevo_gym.curricula.pool.pool import TaskPool, require_train
from coevo_gym.curricula.signals.patterns import PATTERNS
from coevo_gym.curricula.signals.signals import ALL_SIGNALS, Outcome, SignalDetector

MAX_SEED = 2**63


class CoEvolveConfig(FrozenModel):
    """Settings of :class:`CoEvolve`."""

    initial_size: int = Field(default=100, gt=0)
    """Tasks to find by unguided exploration before practice begins (the paper's N)."""
    evolve: Literal["off", "random", "blind", "guided"] = "guided"
    """Where a round explores: ``guided`` follows the signals; ``blind`` starts from practised tasks
    without looking at what happened on them; ``random`` from anywhere in the training scenarios;
    ``off`` never evolves (a static task set)."""
    evolve_every_groups: int = Field(default=320, gt=0)
    """Groups between two rounds: the paper's 10 steps of 32 tasks."""
    max_contexts_per_round: int = Field(default=32, gt=0)
    """Most places a round explores."""
    drafts_per_round: int = Field(default=128, gt=0)
    """Most drafts a round tries; the first one tries four for each task it looks for."""
    signals: tuple[SignalKind, ...] = Field(default=ALL_SIGNALS, min_length=1)
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
    pattern: Literal["sequence", "set"] = "sequence"
    """How an episode's behaviour is described; see ``patterns.py``."""


class CoEvolve:
    """The curriculum of CoEvolve, and its controls.

    The controls differ in *where* a round explores that the same signals make due. ``blind``
    explores as many contexts as ``guided``; ``random`` goes on until ``drafts_per_round`` are
    tried, which is more while few signals are pending.

    Args:
        config: the settings.
        tasks: training tasks to start from. With any, no unguided round comes first.

    Raises:
        SplitLeakError: if a task is not a training task.

    Example:
        >>> import numpy as np
        >>> curriculum = CoEvolve(CoEvolveConfig(initial_size=20))
        >>> curriculum.plan(np.random.default_rng(0)).n_unguided
        20
    """

    def __init__(self, config: CoEvolveConfig | None = None, tasks: Iterable[Task] = ()) -> None:
        self.config = config or CoEvolveConfig()
        self.pool = TaskPool(tasks)
        self.detector = SignalDetector(
            signals=self.config.signals,
            window=self.config.window,
            visit=self.config.visit,
            theta=self.config.theta,
            n_min=self.config.n_min,
            min_support=self.config.min_support,
            outcome=self.config.outcome,
            pattern_of=PATTERNS[self.config.pattern],
        )
        self._pending: dict[tuple[str, str], Context] = {}
        self._practised: dict[str, Context] = {}
        self._planned: Round | None = None
        self._applied: dict[str, None] = {}
        self._initial_ids = {task.id for task in self.pool}
        self._groups_since_round = 0
        self._counts = dict.fromkeys(_COUNTS, 0)

    def next(self, n: int, rng: Generator) -> list[Task]:
        """Tasks drawn uniformly from the pool, each at most once where ``n`` allows it.

        Raises:
            ConfigError: if the pool is empty.
        """
        if not len(self.pool):
            raise ConfigError(
                "The task pool is empty. Start with CoEvolve(config, tasks=[…]), or run a round "
                "of evolution first: EvolvingTaskSampler(…, evolve='manual') leaves that to its "
                "evolve() method. If a round has run, its explorer found no task that passed the "
                "gates: see the verdicts."
            )
        drawn = rng.choice(len(self.pool), size=n, replace=n > len(self.pool))
        return [self.pool[int(index)] for index in drawn]

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Take in finished groups; see :class:`~coevo_gym.core.seams.Curriculum`.

        Raises:
            SplitLeakError: if a group is not training; nothing is recorded then.
        """
        for group in groups:
            require_train(group.task, "record")
            if not all(isinstance(t, Trajectory) for t in group.trajectories):
                raise SplitLeakError(f"{group.id} holds episodes that are not training episodes.")
        signals = self.detector.detect(groups)
        self._pending.update(_contexts(signals, groups))
        for signal in signals:
            self._counts[f"signals_{signal.kind}"] += 1
        if self.config.evolve == "blind":
            for group in groups:
                for last in group.trajectories[-1:]:
                    self._practised[group.task.id] = _context("blind", group.task, last)
        practised = (t for group in groups for t in group.trajectories)
        self._counts["practice_steps"] += sum(len(t.steps) for t in practised)
        self._counts["groups"] += len(groups)
        self._groups_since_round += len(groups)
        return signals

    def plan(self, rng: Generator) -> Round | None:
        """The round that is due, or None.

        A round stays due, and is given again, until its result is applied. A round that is due
        while no signal is pending waits for one.
        """
        if self._planned is None:
            self._planned = self._draw_round(rng)
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
        self._applied[result.round_id] = None
        contexts = {verdict.context_id for verdict in result.verdicts}
        if self._planned is not None and self._planned.id == result.round_id:
            contexts |= {context.id for context in self._planned.contexts}
            self._planned = None
        if initial:
            self._initial_ids = {task.id for task in added}
        else:
            self._counts["contexts"] += len(contexts)
            self._counts["candidates"] += len(result.verdicts)
            self._counts["accepted"] += len(result.accepted)
        self._counts["rounds"] += 1
        self._counts["explore_steps"] += result.env_steps - result.gate_steps
        self._counts["gate_steps"] += result.gate_steps

    def metrics(self) -> dict[str, float]:
        """Numbers about the pool, the signals and what rounds made of them.

        ``share_practice_steps``, ``share_explore_steps`` and ``share_gate_steps`` say what the env
        steps of all rounds and groups were spent on. ``yield``, ``pass_rate`` and ``conversion``
        (see ``metrics.py``) leave out the unguided round that made the first pool.
        """
        counts = self._counts
        kinds = [kind for kind in ALL_SIGNALS for _ in range(counts[f"signals_{kind}"])]
        shares = signal_shares(kinds).shares
        ratios = conversion(
            signals=len(kinds),
            contexts=counts["contexts"],
            candidates=counts["candidates"],
            accepted=counts["accepted"],
        )
        return {
            "pool_size": float(len(self.pool)),
            "evolved": float(len(self.pool) - len(self._initial_ids)),
            "pending_contexts": float(len(self._pending)),
            "distinct_patterns": float(len(self.detector.patterns)),
            **{name: float(count) for name, count in counts.items()},
            **{f"share_{kind}": share for kind, share in shares.items()},
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
        return {
            "pool": self.pool.state_dict(),
            "initial_ids": sorted(self._initial_ids),
            "detector": self.detector.state_dict(),
            "pending": [_dump(context) for context in self._pending.values()],
            "practised": [_dump(context) for context in self._practised.values()],
            "planned": _dump(self._planned) if self._planned else None,
            "applied": list(self._applied),
            "groups_since_round": self._groups_since_round,
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.pool.load_state_dict(state["pool"])
        self.detector.load_state_dict(state["detector"])
        self._initial_ids = set(state["initial_ids"])
        pending = [Context.model_validate_json(text) for text in state["pending"]]
        practised = [Context.model_validate_json(text) for text in state["practised"]]
        self._pending = {(context.kind, context.task.id): context for context in pending}
        self._practised = {context.task.id: context for context in practised}
        planned = state["planned"] and Round.model_validate_json(state["planned"])
        self._planned = planned and planned.model_copy(update={"known": tuple(self.pool)})
        self._applied = dict.fromkeys(state["applied"])
        self._groups_since_round = state["groups_since_round"]
        self._counts = dict.fromkeys(_COUNTS, 0) | state["counts"]

    def _draw_round(self, rng: Generator) -> Round | None:
        """The contexts of the round that is due, which use up what is pending."""
        config = self.config
        if not len(self.pool):
            return Round.unguided(config.initial_size, id=self._round_id(), seed=_seed(rng))
        due = self._groups_since_round >= config.evolve_every_groups and self._pending
        if config.evolve == "off" or not due:
            return None
        n = min(len(self._pending), config.max_contexts_per_round)
        contexts: Sequence[Context] = ()
        if config.evolve == "guided":
            contexts = _share_out(list(self._pending.values()), n, rng)
        elif config.evolve == "blind":
            contexts = _draw(list(self._practised.values()), n, rng)
        self._pending, self._practised, self._groups_since_round = {}, {}, 0
        return Round(
            id=self._round_id(),
            contexts=tuple(contexts),
            n_unguided=0 if contexts else config.drafts_per_round,
            budget=config.drafts_per_round,
            seed=_seed(rng),
            known=tuple(self.pool),
        )

    def _round_id(self) -> str:
        number = len(self._applied)
        while f"round-{number}" in self._applied:
            number += 1
        return f"round-{number}"


_COUNTS = (
    "groups",
    "rounds",
    "contexts",
    "candidates",
    "accepted",
    "practice_steps",
    "explore_steps",
    "gate_steps",
    *(f"signals_{kind}" for kind in ALL_SIGNALS),
)


def _dump(value: Context | Round) -> str:
    return canonical_json(value.model_dump(mode="json"))


def _seed(rng: Generator) -> int:
    return int(rng.integers(MAX_SEED))


def _draw(contexts: Sequence[Context], n: int, rng: Generator) -> list[Context]:
    """``n`` of the contexts, uniformly, each at most once where there are enough."""
    drawn = rng.choice(len(contexts), size=n, replace=n > len(contexts))
    return [contexts[int(index)] for index in drawn]


def _share_out(contexts: Sequence[Context], n: int, rng: Generator) -> list[Context]:
    """``n`` of the contexts, the kinds taking turns, so that none is crowded out."""
    by_kind: dict[str, list[Context]] = {}
    for index in rng.permutation(len(contexts)):
        context = contexts[int(index)]
        by_kind.setdefault(context.kind, []).append(context)
    queues = [by_kind[kind] for kind in ALL_SIGNALS if kind in by_kind]
    shared: list[Context] = []
    while len(shared) < n:
        shared += [queue.pop() for queue in queues if queue]
    return shared[:n]


def _contexts(signals: Sequence[Signal], groups: Sequence[Group]) -> dict[tuple[str, str], Context]:
    """One context for each kind and task; a failed rollout goes before a successful one."""
    by_id = {(group.id, group.task.id): group for group in groups}
    contexts: dict[tuple[str, str], Context] = {}
    for signal in signals:
        group = by_id[signal.group_id, signal.task_id]
        task, rollout = group.task, group.trajectories[signal.index]
        kind = cast(ContextKind, str(signal.kind))
        known = contexts.get((kind, task.id))
        if known is None or (known.success and not rollout.success):
            contexts[kind, task.id] = _context(kind, task, rollout, _summary(signal))
    return contexts


def _context(kind: ContextKind, task: Task, last: Trajectory, summary: str = "") -> Context:
    return Context(
        kind=kind, task=task, actions=last.actions, success=last.success, summary=summary
    )


def _summary(signal: Signal) -> str:
    """The weakness in a sentence, from the numbers that the rule read."""
    numbers = signal.evidence
    if signal.kind is SignalKind.FORGETTING:
        visits = ", ".join(f"{outcome:.2f}" for outcome in numbers["history"])
        return f"Solved before (outcomes of its last visits: {visits}), failed now."
    if signal.kind is SignalKind.BOUNDARY:
        outcomes = numbers["outcomes"]
        return f"{sum(o > 0.5 for o in outcomes)} of {len(outcomes)} rollouts succeeded."
    behaviour = " > ".join(numbers["pattern"])
    return (
        f"The behaviour {behaviour} was seen in {numbers['count']} of {numbers['total']} episodes."
    )
