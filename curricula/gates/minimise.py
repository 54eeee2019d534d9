"""Minimal reference solutions, found by removing steps and replaying the remaining steps.

A step is needed if the score falls without the step, or if it showed a value that a later step
uses. A replay can use an id without the step that listed it, but an agent could not know the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coevo_gym.core.benchmark import Benchmark, Effect, Replay
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.curricula.gates.sources import Sources

MAX_REPLAYS = 24
"""Maximum replays per reference solution; steps that have not been tested by then are kept."""


class Minimised(NamedTuple):
    """The result of minimising a task's reference solution.

    Attributes:
        task: the task with the needed steps as its solution; unchanged if all steps are needed.
        steps: the needed steps.
        dropped: the other steps.
        replay: replay of the needed steps.
        env_steps: env steps spent on replays.
    """

    task: Task
    steps: tuple[str, ...]
    dropped: tuple[str, ...]
    replay: Replay
    env_steps: int


def minimise_solution(benchmark: Benchmark, draft: Draft, task: Task) -> Minimised:
    """Drop unnecessary steps from a task's reference solution.

    The function first drops all steps that have no effect, then sequences of steps that return to
    an earlier state, then single steps from the last to the first. The verifier, which was derived
    from the reference, may require a step that has no effect; such a step is dropped if the task
    can be built without it.

    Raises:
        EnvBackendError: if an engine failed.
    """
    return _Shortening(benchmark, draft, task).run()


class _Shortening:
    """The state of a reference solution while it is being minimised."""

    def __init__(self, benchmark: Benchmark, draft: Draft, task: Task) -> None:
        self._benchmark, self._draft, self._task = benchmark, draft, task
        self._left = MAX_REPLAYS
        self._env_steps = 0
        self._evidence = benchmark.evidence(task)
        self._begun = self._steps = benchmark.demonstration(task)
        self._replay = self._replay_and_count(self._steps)

    def run(self) -> Minimised:
        if self._replay.solves:
            self._drop_idle()
            self._drop_loops()
            self._drop_single()
        rest = list(self._steps)
        dropped = [step for step in self._begun if not _pop_if_first(step, rest)]
        task = self._task
        if dropped and self._steps != self._benchmark.demonstration(task):
            task = task.model_copy(update={"solution": self._steps})
        return Minimised(task, self._steps, tuple(dropped), self._replay, self._env_steps)

    def _drop_idle(self) -> None:
        """Drop all steps that have no effect."""
        idle = [i for i, effect in enumerate(self._replay.effects) if effect is Effect.NOTHING]
        if idle and not self._try_drop(idle):
            self._try_rebuild_without(idle)

    def _drop_loops(self) -> None:
        """Drop sequences of steps that return the engine to an earlier state, longest first."""
        while any(self._try_drop(loop) for loop in self._droppable_loops()):
            pass

    def _droppable_loops(self) -> list[list[int]]:
        states, effects, sources = self._replay.states, self._replay.effects, self._source_indices()
        loops = [
            list(range(first, last))
            for first in range(len(effects) - 1)
            for last in range(first + 2, len(effects))
            if states[first] == states[last] and Effect.CHANGED in effects[first:last]
        ]
        return sorted((loop for loop in loops if not sources & {*loop}), key=len, reverse=True)

    def _drop_single(self) -> None:
        """Drop unnecessary steps one by one; the last step and closing messages are always kept."""
        for index in range(len(self._steps) - 2, -1, -1):
            closes = self._replay.effects[index] is Effect.CLOSED
            if not (closes or self._enables_next_action(index) or index in self._source_indices()):
                self._try_drop([index])

    def _enables_next_action(self, index: int) -> bool:
        """Return True if this step made the next step's action possible."""
        choices, following = self._replay.listed, self._steps[index + 1]
        return bool(choices) and following in choices[index + 1] - choices[index]

    def _try_drop(self, indices: Sequence[int]) -> bool:
        """Drop the given steps if a replay shows that they are not needed."""
        if not self._left:
            return False
        steps = _remove_steps(self._steps, indices)
        played = self._replay_and_count(steps)
        if len(played.errors) == len(steps) and played.solves:
            self._steps, self._replay = steps, played
            return True
        return False

    def _try_rebuild_without(self, indices: Sequence[int]) -> None:
        """Drop the given steps if the task can be rebuilt and verified without them."""
        steps = _remove_steps(self._steps, indices)
        self._env_steps += len(steps)
        try:
            task = self._benchmark.build(self._draft.model_copy(update={"solution": steps}))
        except BuildError:
            return
        before, self._task = self._task, task
        if not self._try_drop(indices):
            self._task = before

    def _source_indices(self) -> set[int]:
        """Return the indices of steps that showed the answer or a value used later."""
        sources = Sources(self._replay, self._evidence)
        return {
            index
            for index in range(len(self._steps))
            if sources.is_used_later(index, self._steps[index + 1 :])
        }

    def _replay_and_count(self, steps: Sequence[str]) -> Replay:
        self._left -= 1
        played = self._benchmark.replay(self._task, steps, to_error=True)
        self._env_steps += len(played.errors)
        return played


def _remove_steps(steps: Sequence[str], indices: Sequence[int]) -> tuple[str, ...]:
    return tuple(step for index, step in enumerate(steps) if index not in indices)


def _pop_if_first(step: str, rest: list[str]) -> bool:
    """Remove the first item of ``rest`` and return True, provided that it equals ``step``."""
    if rest and rest[0] == step:
        rest.pop(0)
        return True
    return False
