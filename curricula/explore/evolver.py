"""The evolver: carries out a round, from contexts to proven tasks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator, SeedSequence

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.evolution import Context, Draft, Round, RoundResult, Verdict
from coevo_gym.core.task import Split, Task
from coevo_gym.core.waiting import Patience
from coevo_gym.curricula.explore.explorer import Explorer
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.curricula.signals.kinds import UNGUIDED

logger = logging.getLogger(__name__)

GatesOf = Callable[[Benchmark, KnownTasks], Sequence[Gate]]

MAX_ATTEMPTS = 3
"""So often a context is explored or a draft judged, if an engine fails every time."""


@dataclass(slots=True)
class _Progress:
    """How far a round has come; complete after each draft."""

    round: Round
    known: KnownTasks
    n_explored: int = 0
    context: Context | None = None
    waiting: deque[Draft | str] = field(default_factory=deque)
    accepted: list[Task] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    env_steps: int = 0
    gate_steps: int = 0
    seconds: float = 0.0


class GatedEvolver:
    """Explores the contexts of a round and takes what comes back through the gates.

    A round is a function of itself: one generator for each context, from the round's seed and the
    context's place. So a round that a crash cut short may simply be run again. Within a process
    nothing is lost either: if ``run`` ends with an exception (a stop, a failed engine), the next
    ``run`` of the same round goes on after the last draft that was judged.

    Args:
        benchmark: builds and replays.
        explorer: goes out with a context.
        gates_of: makes the gates of a round.
        native: the training tasks that unguided exploration starts from; None for all of them.
        on_verdict: called after each draft; what it raises stops the round. Without it, a round
            that takes long says itself how far it is.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        explorer: Explorer,
        *,
        gates_of: GatesOf = default_gates,
        native: Sequence[Task] | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
    ) -> None:
        self.benchmark = benchmark
        self.explorer = explorer
        self.gates_of = gates_of
        self.native = native
        self.on_verdict = on_verdict
        self._progress: _Progress | None = None

    def run(self, round: Round) -> RoundResult:
        """Carry out a round.

        Guided rounds explore each context once, each with an equal share of what is left of the
        budget. Unguided ones go from task to task until enough are accepted, the budget is spent,
        or as many contexts were explored as the budget has drafts. A context or a draft that an
        engine fails on is tried again; the draft is not blamed.

        Raises:
            EnvBackendError: if an engine failed on the same thing :data:`MAX_ATTEMPTS` times; run
                the round again to go on.
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
        finally:
            progress.seconds = time.perf_counter() - begun
        self._progress = None
        return RoundResult(
            round_id=round.id,
            accepted=tuple(progress.accepted),
            verdicts=tuple(progress.verdicts),
            env_steps=progress.env_steps,
            gate_steps=progress.gate_steps,
            seconds=progress.seconds,
        )

    def _done(self, progress: _Progress) -> bool:
        round = progress.round
        if len(progress.verdicts) >= round.budget:
            return True
        if round.n_unguided and len(progress.accepted) >= round.n_unguided:
            return True
        most = round.budget if round.n_unguided else len(round.contexts)
        return not progress.waiting and progress.n_explored >= most

    def _explore(self, progress: _Progress) -> None:
        """Go out with the next context and queue what comes back."""
        round, index = progress.round, progress.n_explored
        rng = np.random.default_rng(SeedSequence(round.seed, spawn_key=(index,)))
        context = self._unguided(rng) if round.n_unguided else round.contexts[index]
        require_train(context.task, "explore from")
        found = self.explorer.explore(context, rng)
        drafts = found.drafts
        if not round.n_unguided:
            left = round.budget - len(progress.verdicts)
            drafts = drafts[: -(-left // (len(round.contexts) - index))]
        progress.context = context
        progress.waiting.extend(drafts)
        progress.env_steps += found.env_steps
        progress.n_explored += 1

    def _unguided(self, rng: Generator) -> Context:
        native = self.benchmark.tasks(Split.TRAIN) if self.native is None else self.native
        if not native:
            raise ConfigError(
                f"{self.benchmark.name} has no training task to explore from. Give the curriculum "
                "tasks to start with, or the evolver native ones."
            )
        return Context(kind=UNGUIDED, task=native[int(rng.integers(len(native)))])

    def _judge(self, progress: _Progress, gates: Sequence[Gate]) -> None:
        """Take the next draft through the gates."""
        context = progress.context
        assert context is not None
        result = run_gates(gates, progress.waiting[0], context_id=context.id)
        progress.waiting.popleft()
        if result.task is not None:
            provenance = {
                "kind": context.kind,
                "context": context.id,
                "round": progress.round.id,
                "draft": result.verdict.draft_id,
            }
            parents = tuple(dict.fromkeys((context.task.id, *result.task.parents)))
            task = result.task.model_copy(
                update={"origin": "evolved", "parents": parents, "provenance": provenance}
            )
            progress.accepted.append(task)
            progress.known.add(task)
        progress.verdicts.append(result.verdict)
        progress.env_steps += result.env_steps
        progress.gate_steps += result.env_steps
        if self.on_verdict is not None:
            self.on_verdict(result.verdict)


def _how_far(progress: _Progress) -> str:
    """How far a round has come, in words."""
    wanted = progress.round.n_unguided
    accepted = f"{len(progress.accepted)} of {wanted}" if wanted else str(len(progress.accepted))
    return f"{accepted} tasks accepted, {len(progress.verdicts)} drafts tried"
