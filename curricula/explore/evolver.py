"""An evolver that explores a round's contexts and checks the resulting drafts with gates."""

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
from coevo_gym.curricula.explore.explorer import BUDGET, Exploration, Explorer, Found
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool.task_pool import require_trainable
from coevo_gym.curricula.signals import UNGUIDED
from coevo_gym.envs.tags import kind_of_tag, tags_from, tags_of

logger = logging.getLogger(__name__)

GatesOf = Callable[[Benchmark, KnownTasks], Sequence[Gate]]

MAX_ATTEMPTS = 3
"""Maximum number of attempts to explore a context or judge a draft if the engine keeps failing."""


MAX_KNOWN = 20
"""Maximum number of known requests that the explorer is shown for a location."""
MAX_NEAR = 2
"""Maximum number of tags that an unguided explorer is asked to stay near."""
PLACES = frozenset({"scene", "scenario"})
"""Kinds of tags that name a location. Explorers are not asked to stay near these tags."""
SKIPPED = "advisor"
"""Gate name in verdicts on skipped contexts."""


@dataclass(slots=True)
class _Progress:
    """The progress of a round, kept so that an interrupted round can be resumed."""

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

    def add(self, exploration: Exploration) -> None:
        """Count the env steps of an exploration, and store its record."""
        self.env_steps += exploration.env_steps
        if exploration.explored is not None:
            self.explored.append(exploration.explored)

    def record_skip(self, context: Context, reason: str) -> Verdict:
        """Record a skipped context, and return its verdict."""
        verdict = Verdict(
            draft_id="", context_id=context.id, accepted=False, gate=SKIPPED, reason=reason
        )
        self.verdicts.append(verdict)
        return verdict


@dataclass(eq=False)
class GatedEvolver:
    """An evolver that explores a round's contexts and checks the resulting drafts with gates.

    A round is deterministic: each context has its own generator, derived from the round's seed and
    the context's index. After a crash, run the round again. Model answers are not requested a
    second time if ``scope`` replays a tape. If ``run`` raises an exception because of a stop or a
    failed engine, the next ``run`` of that round in that process resumes after the last draft.

    Attributes:
        benchmark: the benchmark that builds and replays drafts.
        explorer: the explorer.
        gates_of: creates the gates for a round.
        native: training tasks that unguided exploration starts from; None for all training tasks.
        on_verdict: called with each verdict; an exception raised in it stops the round. Without it,
            a long round logs its progress.
        scope: context manager entered for the round, for each batch of contexts to explore
            (``round-3/explore-8``, where 8 is the index of the first context) and for the gates of
            each draft (``round-3/draft-17``). It reports the cost of model calls in the round.
    """

    benchmark: Benchmark
    explorer: Explorer
    gates_of: GatesOf = default_gates
    native: Sequence[Task] | None = None
    on_verdict: Callable[[Verdict], None] | None = None
    scope: Scope = no_scope
    _progress: _Progress | None = field(default=None, init=False)
    _tags: dict[str, Sequence[str]] = field(default_factory=dict, init=False)

    def run(self, round: Round) -> RoundResult:
        """Run an evolution round.

        The explorer's ``concurrency`` sets how many contexts are explored at once. A guided round
        explores each context once, with an equal share of the remaining budget, and stops early
        once enough tasks are accepted. An unguided round moves from task to task until enough tasks
        are accepted, the budget is spent, or the number of explored contexts equals the number of
        drafts in the budget. After an engine failure, the context or draft is tried again, and the
        draft is not rejected. Once the budget for model calls is spent, earlier results are kept,
        and each planned context that is skipped gets its own verdict.

        Raises:
            EnvBackendError: if an engine failed :data:`MAX_ATTEMPTS` times in a row. Run the round
                again to resume it.
            ModelError: if the model is unavailable.
            SplitLeakError: if a context's task is not a training task.
            ConfigError: if an unguided round has no training tasks to start from.
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
                while not self._is_done(progress):
                    if self.on_verdict is None:
                        patience.log_progress(_describe_progress(progress))
                    try:
                        if progress.waiting:
                            self._judge_next_draft(progress, gates)
                        else:
                            self._explore_next_contexts(progress)
                        faults = 0
                    except EnvBackendError as error:
                        faults += 1
                        logger.warning("round=%s engine failure: %s", round.id, error)
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

    def _is_done(self, progress: _Progress) -> bool:
        round = progress.round
        if progress.n_judged >= round.budget:
            return True
        if round.n_wanted and len(progress.accepted) >= round.n_wanted:
            return True
        return not progress.waiting and progress.n_explored >= self._max_contexts(progress)

    def _max_contexts(self, progress: _Progress) -> int:
        """Return the number of contexts that the round explores in total."""
        if progress.spent:
            return progress.n_explored
        round = progress.round
        return round.budget if round.n_unguided else len(round.contexts)

    def _explore_next_contexts(self, progress: _Progress) -> None:
        """Explore the next contexts and queue their drafts."""
        round, first = progress.round, progress.n_explored
        end = min(first + self.explorer.concurrency, self._max_contexts(progress))
        rngs = [_make_rng(round, place) for place in range(first, end)]
        contexts: Sequence[Context] = round.contexts[first:end]
        if round.n_unguided:
            contexts = [
                self._draw_unguided_context(rng, _make_rng(round, place, 1))
                for place, rng in enumerate(rngs, start=first)
            ]
        for context in contexts:
            require_trainable(context.task, "explore from", self.benchmark)
        contexts = [_with_known_requests(context, progress.known) for context in contexts]
        with self.scope(f"{round.id}/explore-{first}"):
            explorations = self.explorer.explore(contexts, rngs)
        left_out: list[tuple[Context, str]] = []
        for place, (context, exploration) in enumerate(
            zip(contexts, explorations, strict=True), first
        ):
            drafts = exploration.drafts
            if not round.n_unguided:
                left = round.budget - progress.n_judged - len(progress.waiting)
                drafts = drafts[: -(-left // (len(round.contexts) - place))]
            progress.waiting.extend((context, draft) for draft in drafts)
            progress.add(exploration)
            if exploration.skipped:
                left_out.append((context, exploration.skipped))
        progress.n_explored = end
        if any(reason == BUDGET for _, reason in left_out):
            progress.spent = True
            left_out += [(context, BUDGET) for context in round.contexts[end:]]
        self._report_verdicts(
            [progress.record_skip(context, reason) for context, reason in left_out]
        )

    @property
    def _native(self) -> Sequence[Task]:
        return self.benchmark.tasks(Split.TRAIN) if self.native is None else self.native

    def _draw_unguided_context(self, rng: Generator, near: Generator) -> Context:
        """Return a context for a random task, with tags that new tasks should roughly match.

        The tags are the functions that can be called in that task, or else the tags of the
        scenario's native tasks. They are drawn with a separate generator, without affecting other
        draws.
        """
        native = self._native
        if not native:
            raise ConfigError(
                f"{self.benchmark.name} has no training tasks to explore from. Pass initial "
                "tasks to the curriculum, or native tasks to the evolver."
            )
        task = native[int(rng.integers(len(native)))]
        operations = operations_of(self.benchmark, task)
        functions = tags_from(("function", name) for name in operations)
        tags = functions or self._scenario_tags(task.scenario)
        rows = near.choice(len(tags), size=min(MAX_NEAR, len(tags)), replace=False)
        sample = tuple(sorted(tags[int(row)] for row in rows))
        return Context(kind=UNGUIDED, task=task, near=sample)

    def _scenario_tags(self, scenario: str) -> Sequence[str]:
        """Return the tags of a scenario's training tasks, except tags that name a location."""
        if scenario not in self._tags:
            native = self._native
            tags = {tag for task in native if task.scenario == scenario for tag in tags_of(task)}
            self._tags[scenario] = sorted(tag for tag in tags if kind_of_tag(tag) not in PLACES)
        return self._tags[scenario]

    def _judge_next_draft(self, progress: _Progress, gates: Sequence[Gate]) -> None:
        """Run the next draft through the gates."""
        context, draft = progress.waiting[0]
        with self.scope(f"{progress.round.id}/draft-{progress.n_judged}"):
            result = run_gates(gates, draft, context=context)
        progress.waiting.popleft()
        progress.n_judged += 1
        for task, tasks in ((result.task, progress.accepted), (result.held, progress.held)):
            if task is not None:
                evolved = _with_provenance(task, context, progress.round, result.verdict)
                tasks.append(evolved)
                progress.known.add(evolved)
        progress.verdicts.append(result.verdict)
        progress.env_steps += result.env_steps
        progress.gate_steps += result.env_steps
        self._report_verdicts([result.verdict])

    def _report_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        if self.on_verdict is not None:
            for verdict in verdicts:
                self.on_verdict(verdict)


def _with_provenance(task: Task, context: Context, round: Round, verdict: Verdict) -> Task:
    """Return a copy of a built task that records the task's provenance."""
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


def _with_known_requests(context: Context, known: KnownTasks) -> Context:
    """Return a copy of a context, with the instructions of known tasks added."""
    tasks = known.related_tasks(context.task, MAX_KNOWN)
    if context.kind == UNGUIDED:
        there = {task.id for task in tasks}
        others = [task for task in known.latest(MAX_KNOWN) if task.id not in there]
        tasks = [*others, *tasks][-MAX_KNOWN:]
    return context.model_copy(update={"known": tuple(task.instruction for task in tasks)})


def _make_rng(round: Round, *key: int) -> Generator:
    """Create a random number generator from a round's seed and a key, such as a context's index."""
    return np.random.default_rng(SeedSequence(round.seed, spawn_key=key))


def _describe_progress(progress: _Progress) -> str:
    wanted = progress.round.n_wanted
    accepted = f"{len(progress.accepted)} of {wanted}" if wanted else str(len(progress.accepted))
    return f"{accepted} tasks accepted, {progress.n_judged} drafts tried"
