"""Labels of an episode's steps, found by replays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from coevo_gym.core.benchmark import Benchmark, Effect, Replay
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.gates.sources import Sources
from coevo_gym.methods.agentevolver.credit import BAD, GOOD, NO_LABEL

Keep = Callable[[int, Sequence[int]], bool]
_TOLERANCE = 1e-9


def never(step: int, later: Sequence[int]) -> bool:
    """Return False: every step may be left out."""
    return False


def eliminated(
    score: Callable[[Sequence[int]], float],
    n: int,
    *,
    keep: Keep = never,
    errors: Collection[int] = (),
    detours: Sequence[Sequence[int]] = (),
) -> list[int]:
    """Label each step of an episode by comparing the score with and without it.

    From the last step to the first, each is dropped if the rest, without those dropped already,
    scores as much as the whole. Of two steps that do the same, the earlier is therefore needed.

    Args:
        score: returns the score of some of the steps, given by their rising positions.
        n: number of steps.
        keep: called with a step and the remaining later steps; returns True to keep the step
            without a trial.
        errors: steps that failed.
        detours: groups of steps to try together first, in this order, without the steps that were
            already dropped. A walk and the way back cannot be dropped one by one.

    Returns:
        (n,) 1 for a step that was kept, -1 for one that was dropped. If the whole scores 0, no
        step is tried: steps that failed get -1, the others 0. Besides the whole, each detour and
        each step is scored at most once.

    Example:
        >>> eliminated(lambda steps: float({0, 2} <= {*steps}), 3)
        [1, -1, 1]

    Source: ours, in place of the judge model of AgentEvolver (arXiv 2511.10395), 5.1.
    """
    steps = [*range(n)]
    whole = score(steps)
    if whole <= 0.0:
        return [BAD if step in errors else NO_LABEL for step in range(n)]
    for stretch in (*detours, *([step] for step in reversed(range(n)))):
        dropped = [step for step in stretch if step in steps]
        rest = [step for step in steps if step not in dropped]
        if not dropped or any(keep(one, [s for s in rest if s > one]) for one in dropped):
            continue
        if score(rest) >= whole - _TOLERANCE:
            steps = rest
    return [GOOD if step in steps else BAD for step in range(n)]


logger = logging.getLogger(__name__)

EXAMINED, LEFT_OUT, UNLIKE, FAULT, NO_ANSWER = (
    "examined", "left_out", "unlike", "fault", "no_answer",
)  # fmt: skip
"""Labels of the note about a whole trajectory: its steps are labelled; it would have needed too
many replays or questions; a replay of all its actions has another score; the engine failed; the
model gave no usable answer."""
MAX_REPLAYS = 2000
"""Maximum replays per step of the learner."""
_SAME_SCORE = 1e-9


class Judged(NamedTuple):
    """The labels of a trajectory.

    Attributes:
        how: the result, one of :data:`EXAMINED`, :data:`LEFT_OUT`, :data:`UNLIKE` and
            :data:`FAULT`.
        labels: the label of each step.
        env_steps: total env steps of the replays.
    """

    how: str
    labels: list[int]
    env_steps: int = 0


def unlabelled(trajectory: Trajectory, how: str = LEFT_OUT, env_steps: int = 0) -> Judged:
    """Return the labels of a trajectory that was not examined."""
    return Judged(how, [NO_LABEL] * len(trajectory.steps), env_steps)


def most_replays(trajectory: Trajectory) -> int:
    """Return the maximum number of replays needed to label the steps of a trajectory."""
    if trajectory.end_reason.lost:
        return 0
    return 1 + 2 * len(trajectory.steps) if trajectory.score > 0.0 else 1


def affordable(costs: Sequence[int], most: int) -> list[bool]:
    """Return True for each episode or group that a limit allows, the cheapest first.

    Args:
        costs: maximum replays, or questions, of each.
        most: the limit of their sum.

    Example:
        >>> affordable([5, 2, 3], 6)
        [False, True, True]
    """
    found = [False] * len(costs)
    for place in sorted(range(len(costs)), key=costs.__getitem__):
        most -= costs[place]
        if most < 0:
            break
        found[place] = True
    return found


def judged(
    benchmark: Benchmark, task: Task, trajectory: Trajectory, *, hindsight: bool = False
) -> Judged:
    """Label the steps of a trajectory by replays; return no labels if the engine fails.

    Args:
        benchmark: the benchmark, which replays actions.
        task: the task of the trajectory.
        trajectory: a trajectory that was not lost.
        hindsight: label all steps that were not needed as bad, searches too.
    """
    replays = _Replays(benchmark, task, trajectory.actions)
    try:
        return replays.judged(trajectory.score, hindsight=hindsight)
    except EnvBackendError as error:
        logger.warning("task=%s: no labels, a replay failed: %s", task.name, error)
        return unlabelled(trajectory, FAULT, replays.env_steps)


class _Replays:
    """Replays of one trajectory, whole and in parts."""

    def __init__(self, benchmark: Benchmark, task: Task, actions: Sequence[str]) -> None:
        self._benchmark, self._task, self._actions = benchmark, task, actions
        self.env_steps = 0

    def judged(self, score: float, *, hindsight: bool) -> Judged:
        """Label the steps; return no labels if a replay of all actions scores otherwise."""
        actions = self._actions
        whole = self._play(range(len(actions)))
        if abs(whole.scores[-1] - score) > _SAME_SCORE:
            return Judged(UNLIKE, [NO_LABEL] * len(actions), self.env_steps)
        sources = Sources(whole, self._benchmark.evidence(self._task))

        def keep(step: int, later: Sequence[int]) -> bool:
            closes = whole.effects[step] is Effect.CLOSED
            return closes or sources.feeds(step, [actions[one] for one in later])

        def scored(steps: Sequence[int]) -> float:
            played = whole if len(steps) == len(actions) else self._play(steps)
            return played.scores[-1]

        errors = [step for step, error in enumerate(whole.errors) if error]
        labels = eliminated(scored, len(actions), keep=keep, errors=errors, detours=_detours(whole))
        if not hindsight:
            for step in _showing_news(whole, self._task.instruction):
                if labels[step] == BAD and step not in errors:
                    labels[step] = NO_LABEL
        return Judged(EXAMINED, labels, self.env_steps)

    def _play(self, steps: Sequence[int]) -> Replay:
        played = self._benchmark.replay(self._task, [self._actions[step] for step in steps])
        self.env_steps += len(played.errors)
        return played


def _detours(whole: Replay) -> list[range]:
    """Return stretches of steps that change the engine but end in its earlier state.

    The shortest come first; of equally long ones the latest first. There are at most as many as
    steps.
    """
    states, n = whole.states, len(whole.effects)
    found = [
        range(first, last)
        for first in range(n - 1)
        for last in range(first + 2, n + 1)
        if states[first] == states[last] and Effect.CHANGED in whole.effects[first:last]
    ]
    return sorted(found, key=lambda one: (len(one), -one.start))[:n]


def _showing_news(whole: Replay, instruction: str) -> list[int]:
    """Return the steps that showed a text for the first time."""
    shown = {_plain(text) for text in ("", whole.opening, instruction)}
    found = []
    for step, text in enumerate(map(_plain, whole.shown)):
        if text not in shown:
            found.append(step)
        shown.add(text)
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())
