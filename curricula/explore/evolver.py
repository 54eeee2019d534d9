"""The evolver: carries out a round, from contexts to proven tasks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator, SeedSequence

from coevo_gym.core.benchmark import Benchmark, operations_of
from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.evolution import Context, Explored, Round, RoundResult, Verdict
from coevo_gym.core.inquiry import Scope, no_scope
from coevo_gym.core.task import FrozenDict, Split, Task
from coevo_gym.core.waiting import Patience
from coevo_gym.curricula.explore.explorer import BUDGET, Exploration, Explorer
from coevo_gym.curricula.explore.found import Found
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool.pool import require_trainable
from coevo_gym.curricula.signals.kinds import UNGUIDED
from coevo_gym.envs.tags import kind_of_tag, tags_from, tags_of

logger = logging.getLogger(__name__)

GatesOf = Callable[[Benchmark, KnownTasks], Sequence[Gate]]

MAX_ATTEMPTS = 3
"""So often a context is explored or a draft judged, if an engine fails every time."""


MAX_KNOWN = 20
"""Of so many requests that are known at a place an explorer is told."""
MAX_NEAR = 2
"""Tags that an unguided explorer is to stay near."""
PLACES = frozenset({"scene", "scenario"})
"""Kinds of tags that name a place, which is nothing to be near to."""
SKIPPED = "advisor"
"""What takes the place of a gate in the verdict on a context that was left out."""


@dataclass(slots=True)
class _Progress:
    """How far a round has come; complete after each draft."""

    round: Round
    known: KnownTasks
    n_explored: int = 0
    n_judged: int = 0
    spent: bool = False
    waiting: deque[tuple[Context, Found]] = field(default_factory=deque)
    accepted: list[Task] = field(default_factory=list)
    held: list[Task] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    explored: list[Explored] = field(default_factory=list)
    env_steps: int = 0
    gate_steps: int = 0
    seconds: float = 0.0

    def add(self, found: Exploration) -> None:
        """Count what exploring a context has cost, and keep what it was like."""
        self.env_steps += found.env_steps
        if found.explored is not None:
            self.explored.append(found.explored)

    def skip(self, context: Context, reason: str) -> Verdict:
        """Leave a context out, and say so."""
        verdict = Verdict(
            draft_id="", context_id=context.id, accepted=False, gate=SKIPPED, reason=reason
        )
        self.verdicts.append(verdict)
        return verdict


class GatedEvolver:
    """Explores the contexts of a round and takes what comes back through the gates.

    A round is a function of itself: one generator for each context, from the round's seed and the
    context's place. So a round that a crash cut short may simply be run again, and what models
    said is not asked for a second time if ``scope`` is that of a tape. Within a process nothing is
    lost either: if ``run`` ends with an exception (a stop, a failed engine), the next ``run`` of
    the same round goes on after the last draft that was judged.

    Args:
        benchmark: builds and replays.
        explorer: goes out with a context.
        gates_of: makes the gates of a round.
        native: the training tasks that unguided exploration starts from; None for all of them.
        on_verdict: called with each verdict; what it raises stops the round. Without it, a round
            that takes long says itself how far it is.
        scope: entered around the round, around each exploration of some contexts
            (``round-3/explore-8``, where 8 is the place of the first of them) and around the gates
            of each draft (``round-3/draft-17``). It tells what asking models has cost in the round.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        explorer: Explorer,
        *,
        gates_of: GatesOf = default_gates,
        native: Sequence[Task] | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
        scope: Scope = no_scope,
    ) -> None:
        self.benchmark = benchmark
        self.explorer = explorer
        self.gates_of = gates_of
        self.native = native
        self.on_verdict = on_verdict
        self.scope = scope
        self._progress: _Progress | None = None
        self._tags: dict[str, Sequence[str]] = {}

    def run(self, round: Round) -> RoundResult:
        """Carry out a round.

        Contexts are explored as many at a time as the explorer likes. Guided rounds explore each
        once, each with an equal share of what is left of the budget, unless fewer tasks are enough.
        Unguided ones go from task to task until enough are accepted, the budget is spent, or as
        many contexts were explored as the budget has drafts. A context or a draft that an engine
        fails on is tried again; the draft is not blamed. Where models may be asked nothing more,
        what was found is kept: of the contexts that are left out, each that was planned gets a
        verdict of its own.

        Raises:
            EnvBackendError: if an engine failed on the same thing :data:`MAX_ATTEMPTS` times; run
                the round again to go on.
            ModelError: if a model cannot be asked at all.
            SplitLeakError: if a context is not of a training task.
            ConfigError: if an unguided round has no training task to start from.
        """
        progress = self._progress
        if progress is None or progress.round != round:
            progress = self._progress = _Progress(round, KnownTasks(round.known))
        gates = self.gates_of(self.benchmark, progress.known)
        begun = time.perf_counter() - progress.seconds
        patience = Patience(f"Evolution, {round.id}")
        faults = 0
        try:
            with self.scope(round.id) as spent:
                while not self._done(progress):
                    if self.on_verdict is None:
                        patience.tell(_how_far(progress))
                    try:
                        if progress.waiting:
                            self._judge(progress, gates)
                        else:
                            self._explore(progress)
                        faults = 0
                    except EnvBackendError as error:
                        faults += 1
                        logger.warning("round=%s lost an engine: %s", round.id, error)
                        if faults == MAX_ATTEMPTS:
                            raise
                usage = FrozenDict(spent())
        finally:
            progress.seconds = time.perf_counter() - begun
        self._progress = None
        return RoundResult(
            round_id=round.id,
            accepted=tuple(progress.accepted),
            held=tuple(progress.held),
            verdicts=tuple(progress.verdicts),
            explored=tuple(progress.explored),
            usage=usage,
            env_steps=progress.env_steps,
            gate_steps=progress.gate_steps,
            seconds=progress.seconds,
        )

    def _done(self, progress: _Progress) -> bool:
        round = progress.round
        if progress.n_judged >= round.budget:
            return True
        if round.n_wanted and len(progress.accepted) >= round.n_wanted:
            return True
        return not progress.waiting and progress.n_explored >= self._most_contexts(progress)

    def _most_contexts(self, progress: _Progress) -> int:
        """How many contexts the round explores in all."""
        if progress.spent:
            return progress.n_explored
        round = progress.round
        return round.budget if round.n_unguided else len(round.contexts)

    def _explore(self, progress: _Progress) -> None:
        """Go out with the next contexts and queue what comes back."""
        round, first = progress.round, progress.n_explored
        end = min(first + self.explorer.concurrency, self._most_contexts(progress))
        rngs = [_rng(round, place) for place in range(first, end)]
        contexts: Sequence[Context] = round.contexts[first:end]
        if round.n_unguided:
            contexts = [
                self._unguided(rng, near_rng(round, place))
                for place, rng in enumerate(rngs, start=first)
            ]
        for context in contexts:
            require_trainable(context.task, "explore from", self.benchmark)
        contexts = [_told(context, progress.known) for context in contexts]
        with self.scope(f"{round.id}/explore-{first}"):
            explorations = self.explorer.explore(contexts, rngs)
        left_out: list[tuple[Context, str]] = []
        for place, (context, found) in enumerate(zip(contexts, explorations, strict=True), first):
            drafts = found.drafts
            if not round.n_unguided:
                left = round.budget - progress.n_judged - len(progress.waiting)
                drafts = drafts[: -(-left // (len(round.contexts) - place))]
            progress.waiting.extend((context, draft) for draft in drafts)
            progress.add(found)
            if found.skipped:
                left_out.append((context, found.skipped))
        progress.n_explored = end
        if any(reason == BUDGET for _, reason in left_out):
            progress.spent = True
            left_out += [(context, BUDGET) for context in round.contexts[end:]]
        self._tell([progress.skip(context, reason) for context, reason in left_out])

    @property
    def _native(self) -> Sequence[Task]:
        return self.benchmark.tasks(Split.TRAIN) if self.native is None else self.native

    def _unguided(self, rng: Generator, near: Generator) -> Context:
        """A context of a native task, with tags to stay near.

        The tags are functions that can be called there, or else those of the scenario's native
        tasks. They have a source of chance of their own, so that explorers that need no tags draw
        what they always drew.
        """
        native = self._native
        if not native:
            raise ConfigError(
                f"{self.benchmark.name} has no training task to explore from. Give the curriculum "
                "tasks to start with, or the evolver native ones."
            )
        task = native[int(rng.integers(len(native)))]
        found = operations_of(self.benchmark, task)
        tags = tags_from(("function", name) for name in found) or self._tags_at(task.scenario)
        rows = near.choice(len(tags), size=min(MAX_NEAR, len(tags)), replace=False)
        drawn = tuple(sorted(tags[int(row)] for row in rows))
        return Context(kind=UNGUIDED, task=task, near=drawn)

    def _tags_at(self, scenario: str) -> Sequence[str]:
        """The tags of a scenario's native tasks, without those of the place itself."""
        if scenario not in self._tags:
            native = self._native
            tags = {tag for task in native if task.scenario == scenario for tag in tags_of(task)}
            self._tags[scenario] = sorted(tag for tag in tags if kind_of_tag(tag) not in PLACES)
        return self._tags[scenario]

    def _judge(self, progress: _Progress, gates: Sequence[Gate]) -> None:
        """Take the next draft through the gates."""
        context, found = progress.waiting[0]
        with self.scope(f"{progress.round.id}/draft-{progress.n_judged}"):
            result = run_gates(gates, found, context=context)
        progress.waiting.popleft()
        progress.n_judged += 1
        for task, kept in ((result.task, progress.accepted), (result.held, progress.held)):
            if task is not None:
                evolved = _evolved(task, context, progress.round, result.verdict)
                kept.append(evolved)
                progress.known.add(evolved)
        progress.verdicts.append(result.verdict)
        progress.env_steps += result.env_steps
        progress.gate_steps += result.env_steps
        self._tell([result.verdict])

    def _tell(self, verdicts: Sequence[Verdict]) -> None:
        if self.on_verdict is not None:
            for verdict in verdicts:
                self.on_verdict(verdict)


def _evolved(task: Task, context: Context, round: Round, verdict: Verdict) -> Task:
    """A built task that says where it comes from."""
    provenance = {
        "kind": context.kind,
        "context": context.id,
        "round": round.id,
        "draft": verdict.draft_id,
    }
    parents = tuple(dict.fromkeys((context.task.id, *task.parents)))
    return task.model_copy(
        update={"origin": "evolved", "parents": parents, "provenance": provenance}
    )


def _told(context: Context, known: KnownTasks) -> Context:
    """A context with what is known there already, or anywhere where nothing guides."""
    tasks = known.around(context.task, MAX_KNOWN)
    if context.kind == UNGUIDED:
        there = {task.id for task in tasks}
        others = [task for task in known.latest(MAX_KNOWN) if task.id not in there]
        tasks = [*others, *tasks][-MAX_KNOWN:]
    return context.model_copy(update={"known": tuple(task.instruction for task in tasks)})


def _rng(round: Round, place: int) -> Generator:
    """All of the chance in what is found from one context."""
    return np.random.default_rng(SeedSequence(round.seed, spawn_key=(place,)))


def near_rng(round: Round, place: int) -> Generator:
    """The chance in the tags of an unguided context, apart from that in what is found from it."""
    return np.random.default_rng(SeedSequence(round.seed, spawn_key=(place, 1)))


def _how_far(progress: _Progress) -> str:
    """How far a round has come, in words."""
    wanted = progress.round.n_wanted
    accepted = f"{len(progress.accepted)} of {wanted}" if wanted else str(len(progress.accepted))
    return f"{accepted} tasks accepted, {progress.n_judged} drafts tried"
