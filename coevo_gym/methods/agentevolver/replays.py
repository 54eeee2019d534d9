"""Labels for an episode's steps, obtained by replaying the episode."""

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


def keep_none(step: int, later: Sequence[int]) -> bool:
    """Return False, because replays may leave out any step."""
    return False


def label_by_elimination(
    score: Callable[[Sequence[int]], float],
    n: int,
    *,
    keep: Keep = keep_none,
    errors: Collection[int] = (),
    detours: Sequence[Sequence[int]] = (),
) -> list[int]:
    """Label each step of an episode by comparing the score with and without the step.

    From the last step to the first, a step is dropped if the remaining steps score as much as the
    whole episode. If two steps do the same, the earlier step is therefore needed.

    Args:
        score: returns the score of some of the steps, given by their increasing positions.
        n: number of steps.
        keep: called with a step and the remaining later steps; returns True to keep the step
            without trying to drop it.
        errors: steps that failed.
        detours: groups of steps to drop together first, in this order, without the steps that were
            already dropped. For example, a walk and the way back cannot be dropped one by one.

    Returns:
        (n,) labels: 1 for steps that were kept, -1 for steps that were dropped. If the whole
        episode scores 0, no step is tried: failed steps get -1, and other steps 0. Apart from the
        whole episode, each detour and each step is scored at most once.

    Example:
        >>> label_by_elimination(lambda steps: float({0, 2} <= {*steps}), 3)
        [1, -1, 1]

    Source: ours, in place of the judge model in AgentEvolver (arXiv 2511.10395), 5.1.
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
"""Labels of the note about a trajectory, in this order: its steps are labelled; it would have
needed too many replays or questions; replaying all its actions gives a different score; the engine
failed; the model did not give a usable answer."""
MAX_REPLAYS = 2000
"""Maximum number of replays per learner step."""
_SAME_SCORE = 1e-9


class Judged(NamedTuple):
    """The labels of a trajectory's steps.

    Attributes:
        how: the result, such as :data:`EXAMINED`, :data:`LEFT_OUT`, :data:`UNLIKE` or
            :data:`FAULT`.
        labels: the label of each step.
        env_steps: total env steps of the replays.
    """

    how: str
    labels: list[int]
    env_steps: int = 0


def no_labels(trajectory: Trajectory, how: str = LEFT_OUT, env_steps: int = 0) -> Judged:
    """Return a result without labels for a trajectory that was not examined."""
    return Judged(how, [NO_LABEL] * len(trajectory.steps), env_steps)


def most_replays(trajectory: Trajectory) -> int:
    """Return the maximum number of replays needed to label a trajectory's steps."""
    if trajectory.end_reason.is_lost:
        return 0
    return 1 + 2 * len(trajectory.steps) if trajectory.score > 0.0 else 1


def select_affordable(costs: Sequence[int], most: int) -> list[bool]:
    """Select as many episodes or groups as the budget ``most`` allows, cheapest first.

    Example:
        >>> select_affordable([5, 2, 3], 6)
        [False, True, True]
    """
    mask = [False] * len(costs)
    for place in sorted(range(len(costs)), key=costs.__getitem__):
        most -= costs[place]
        if most < 0:
            break
        mask[place] = True
    return mask


def label_by_replay(
    benchmark: Benchmark, task: Task, trajectory: Trajectory, *, hindsight: bool = False
) -> Judged:
    """Label the steps of a trajectory by replaying its actions.

    If the engine fails, all labels are empty. With ``hindsight``, unneeded searches are also bad.
    """
    replays = _Replays(benchmark, task, trajectory.actions)
    try:
        return replays.label_steps(trajectory.score, hindsight=hindsight)
    except EnvBackendError as error:
        logger.warning("task=%s: no labels because a replay failed: %s", task.name, error)
        return no_labels(trajectory, FAULT, replays.env_steps)


class _Replays:
    """Replays of some or all of a trajectory's actions."""

    def __init__(self, benchmark: Benchmark, task: Task, actions: Sequence[str]) -> None:
        self._benchmark, self._task, self._actions = benchmark, task, actions
        self.env_steps = 0

    def label_steps(self, score: float, *, hindsight: bool) -> Judged:
        """Label each step by replays; no step gets a label if a full replay scores differently."""
        actions = self._actions
        whole = self._replay_steps(range(len(actions)))
        if abs(whole.scores[-1] - score) > _SAME_SCORE:
            return Judged(UNLIKE, [NO_LABEL] * len(actions), self.env_steps)
        sources = Sources(whole, self._benchmark.evidence(self._task))

        def keep(step: int, later: Sequence[int]) -> bool:
            closes = whole.effects[step] is Effect.CLOSED
            return closes or sources.is_used_later(step, [actions[one] for one in later])

        def score_steps(steps: Sequence[int]) -> float:
            played = whole if len(steps) == len(actions) else self._replay_steps(steps)
            return played.scores[-1]

        errors = [step for step, error in enumerate(whole.errors) if error]
        labels = label_by_elimination(
            score_steps, len(actions), keep=keep, errors=errors, detours=_detours(whole)
        )
        if not hindsight:
            for step in _steps_with_new_text(whole, self._task.instruction):
                if labels[step] == BAD and step not in errors:
                    labels[step] = NO_LABEL
        return Judged(EXAMINED, labels, self.env_steps)

    def _replay_steps(self, steps: Sequence[int]) -> Replay:
        played = self._benchmark.replay(self._task, [self._actions[step] for step in steps])
        self.env_steps += len(played.errors)
        return played


def _detours(whole: Replay) -> list[range]:
    """Return detours: sequences of steps that change an engine's state and then restore it.

    The shortest sequences come first; in a tie, the latest comes first. The number of sequences is
    at most the number of steps.
    """
    states, n = whole.states, len(whole.effects)
    detours = [
        range(first, last)
        for first in range(n - 1)
        for last in range(first + 2, n + 1)
        if states[first] == states[last] and Effect.CHANGED in whole.effects[first:last]
    ]
    return sorted(detours, key=lambda one: (len(one), -one.start))[:n]


def _steps_with_new_text(whole: Replay, instruction: str) -> list[int]:
    """Return the index of each step whose observation had not appeared before."""
    texts = {_collapse_spaces(text) for text in ("", whole.opening, instruction)}
    steps = []
    for step, text in enumerate(map(_collapse_spaces, whole.shown)):
        if text not in texts:
            steps.append(step)
        texts.add(text)
    return steps


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())
