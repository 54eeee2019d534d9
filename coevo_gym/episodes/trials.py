"""Trials: repeated attempts at tasks, with reflections on earlier attempts (Reflexion).

An outcome decides whether a task is tried again, even for held-out tasks. The result is therefore a
:class:`Trials` object, which is never compared with an evaluation. Its episodes are
:class:`~coevo_gym.core.trajectory.EvalTrajectory`, a type that code for recording, training or
exploring does not accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from coevo_gym.core.errors import BudgetSpent, ConfigError
from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue, EndReason, EvalTrajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import Finished, Lost, clean_cue, eval_trajectory_of
from coevo_gym.episodes.evaluation import (
    FinishedEpisodes,
    Players,
    make_eval_line,
    require_finished_episode,
    seed_of_sample,
    single_player,
)
from coevo_gym.episodes.runner import Admission, Mode, Runner
from coevo_gym.episodes.stopping import StoppingAgent
from coevo_gym.store.eval_folder import EvalLine, Key


@dataclass(frozen=True, slots=True)
class TrialEpisode:
    """One trial of a task from any split, with the lessons from earlier trials.

    Raises:
        TaskError: if the task is an open task.
        ConfigError: if a cue's place is not supported.
    """

    task: Task
    seed: int
    cues: tuple[Cue, ...] = ()

    def __post_init__(self) -> None:
        self.task.require_goal("try")
        object.__setattr__(self, "cues", tuple(map(clean_cue, self.cues)))

    def show(self, view: View) -> View:
        """Add the episode's cues (guidance for the agent) to a view."""
        return replace(view, cues=self.cues) if self.cues else view

    def make_record(
        self, env: TaskEnv, acts: Sequence[Act], view_texts: Sequence[str]
    ) -> EvalTrajectory:
        """Return the trajectory of the finished episode."""
        return eval_trajectory_of(env, acts)


class FailedTrial(NamedTuple):
    """A failed trial to reflect on, with the reflections on earlier trials (oldest first)."""

    task: Task
    trajectory: EvalTrajectory
    earlier: tuple[str, ...]


class TrialLesson(NamedTuple):
    """A model's reflection on a failed trial, and the cost of the request."""

    text: str = ""
    usage: Usage = NO_USAGE


Reflect = Callable[[Sequence[FailedTrial]], Sequence[TrialLesson | None]]
"""A function that reflects on failed trials. It returns None for a lesson that a cap prevents."""
Told = Callable[[Task], tuple[Cue, ...]]
"""A function that returns the cues for a task in each of its trials."""


class KeptTrials:
    """In-memory storage for the results of trials.

    Attributes:
        episodes: the finished episodes; the sample of an episode is the index of its trial, from 0.
        lessons: reflections on failed trials, by task id and trial.
    """

    def __init__(self, episodes: FinishedEpisodes | None = None) -> None:
        self.episodes = episodes or FinishedEpisodes()
        self.lessons: dict[Key, TrialLesson] = {}

    def add_lesson(self, key: Key, lesson: TrialLesson) -> None:
        """Store the lesson from a failed trial."""
        self.lessons[key] = lesson


@dataclass(frozen=True)
class Trials:
    """An agent's results on tasks that it is allowed to retry.

    Attributes:
        tasks: the tasks.
        n: maximum trials per task.
        lines: the results of finished episodes; the sample is the index of the trial, from 0.
        reflections: reflections on failed trials, by task id and trial.
        lost_steps: env steps of episodes that were lost to the engine or the model.
        reflecting: the cost of all reflections, including those without a usable answer.
    """

    tasks: Sequence[Task]
    n: int
    lines: tuple[EvalLine, ...]
    reflections: Mapping[Key, str]
    lost_steps: int = 0
    reflecting: Usage = NO_USAGE

    @property
    def rates_by_trial(self) -> tuple[float, ...]:
        """The share of tasks solved by the end of each trial; see :func:`solved_shares`."""
        return solved_shares([(line.id, line.sample, line.success) for line in self.lines], self.n)

    @property
    def n_lost(self) -> int:
        """The number of tasks with a lost episode to rerun. Later rates exclude these tasks."""
        over = {line.id for line in self.lines if line.success or line.sample == self.n - 1}
        return len(self.tasks) - len(over)

    @property
    def n_to_reflect_on(self) -> int:
        """The number of failed trials that were not the last trial allowed for their task."""
        return sum(not line.success and line.sample < self.n - 1 for line in self.lines)

    @property
    def env_steps(self) -> int:
        """The number of env steps taken, including those in lost episodes."""
        return sum(line.steps for line in self.lines) + self.lost_steps

    @property
    def usage(self) -> Usage:
        """The cost of the finished episodes and of all reflections."""
        return sum((line.usage for line in self.lines), self.reflecting)

    @property
    def final_lines(self) -> tuple[EvalLine, ...]:
        """The final episode for each task: the trial that solved the task, or the last trial.

        Tasks with a lost episode to repeat are left out, so the success rate of these episodes is
        the last of :attr:`rates_by_trial`.
        """
        return tuple(line for line in self.lines if line.success or line.sample == self.n - 1)


def run_trials(
    agent: Agent | Players,
    reflect: Reflect,
    tasks: Sequence[Task],
    envs: EnvPool,
    *,
    n: int = 3,
    keep: int = 3,
    cut: bool = True,
    cues: Told = lambda task: (),
    until_solved: bool = True,
    seed: int = 0,
    results: KeptTrials | None = None,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
    admission: Admission | None = None,
) -> Trials:
    """Try each task up to ``n`` times, passing reflections on failed trials to the next trial.

    Without cues, the first trial equals :func:`~coevo_gym.episodes.evaluation.evaluate`. An episode
    lost to a fault does not count as a failure: its task waits until a later call tries it again.

    Args:
        agent: the agent; or a function that returns the players for each trial, see
            :func:`~coevo_gym.episodes.evaluation.evaluate`.
        reflect: reflects on failed trials.
        tasks: the tasks to try, of any split.
        envs: raw envs.
        n: maximum trials per task.
        keep: number of latest reflections that the agent gets.
        cut: True to end an episode at an action that repeats the previous action.
        cues: returns the cues for a task in each trial, in addition to reflections.
        until_solved: True to stop trying solved tasks; False to run all trials of each task.
        seed: base seed; combined with the task's id and the trial, it seeds the episode's env.
        results: results of an earlier call, to which this call adds its own. A failed trial
            without a reflection gets one if its trajectory was stored, and is run again otherwise.
        on_done: called after each episode with the number of finished or lost episodes so far.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.
        admission: rule for when episodes begin; see
            :func:`~coevo_gym.episodes.evaluation.evaluate`.

    Raises:
        BudgetSpent: if a cap leaves no room for more episodes or reflections.
        ConfigError: if ``n`` or ``keep`` is not positive.
        TaskError: if a task is an open task.
        EnvBackendError: if no episode ever finished, and the first was lost to its engine.
        ModelError: if no episode ever finished, and the first was lost to the model.
    """
    if n < 1 or keep < 1:
        raise ConfigError(f"For trials, n and keep must be at least 1, got n={n} and keep={keep}.")
    results = results or KeptTrials()
    players = agent if callable(agent) else single_player(agent)
    admission = admission or Admission()
    lost: list[Lost] = []

    def play(
        trial: int, waiting: Sequence[Task], reflections: Mapping[str, Sequence[str]]
    ) -> list[bool]:
        failed = dict[str, bool]()
        failures = list[FailedTrial]()
        new = []
        for task in waiting:
            key = task.id, trial
            line, trajectory = results.episodes.lines.get(key), None
            if line is not None and not line.success and key not in results.lessons:
                trajectory = results.episodes.find_trajectory(key)
                line = None if trajectory is None else line
            if line is None:
                new.append(task)
                continue
            failed[task.id] = not line.success
            if trajectory is not None:
                failures.append(FailedTrial(task, trajectory, tuple(reflections[task.id])))
        with players(trial, len(waiting) - len(new), new) if new else nullcontext(()) as parts:
            for player, part in parts:
                acting = CutAtRepeats(player) if cut else player
                episodes = [
                    TrialEpisode(
                        task,
                        seed_of_sample(seed, task, trial),
                        (*cues(task), *reflection_cues(reflections[task.id])),
                    )
                    for task in part
                ]
                for outcome in Runner(envs, mode, admission).run(episodes, acting):
                    task = part[outcome.index]
                    if isinstance(outcome, Finished):
                        results.episodes.add(
                            make_eval_line(task, trial, seed, outcome), outcome.record
                        )
                        failed[task.id] = not outcome.record.success
                        if not outcome.record.success:
                            failures.append(
                                FailedTrial(task, outcome.record, tuple(reflections[task.id]))
                            )
                        admission.record_usage(outcome.usage)
                    elif isinstance(outcome.error, BudgetSpent):
                        admission.closed = admission.closed or outcome.error
                        continue
                    else:
                        results.episodes.add_lost(task, trial, outcome)
                        lost.append(outcome)
                    if on_done:
                        on_done(len(results.episodes.lines) + len(lost))
        if admission.closed is not None:
            raise admission.closed
        last = trial == n - 1
        # The order in which episodes end may depend on the clock; reflections must not.
        places = {task.id: place for place, task in enumerate(waiting)}
        failures.sort(key=lambda failure: places[failure.task.id])
        for first in range(0, len(failures), envs.max_envs):  # each batch is kept before the next
            some = failures[first : first + envs.max_envs]
            lessons = [TrialLesson()] * len(some) if last else reflect(some)
            for failure, lesson in zip(some, lessons, strict=True):
                if lesson is not None:
                    results.add_lesson((failure.task.id, trial), lesson)
            if unpaid := sum(lesson is None for lesson in lessons):
                raise BudgetSpent(
                    f"A cap leaves no room for {unpaid} reflections on failed trials. Raise "
                    "max_tokens_total or max_usd_total to continue."
                )
        return [failed.get(task.id, False) or not until_solved for task in waiting]

    def reflection(trial: int, task: Task) -> str:
        return results.lessons.get((task.id, trial), TrialLesson()).text

    repeat_trials(tasks, play, reflection, n=n, keep=keep)
    require_finished_episode(results.episodes, lost, "trial")
    wanted = {task.id for task in tasks}
    lines = tuple(line for line in results.episodes.lines.values() if line.id in wanted)
    lessons = {key: lesson for key, lesson in results.lessons.items() if key[0] in wanted}
    return Trials(
        tasks,
        n,
        lines,
        {key: lesson.text for key, lesson in lessons.items() if lesson.text},
        sum(one.env_steps for one in lost),
        sum((lesson.usage for lesson in lessons.values()), NO_USAGE),
    )


def repeat_trials(
    tasks: Sequence[Task],
    play: Callable[[int, Sequence[Task], Mapping[str, Sequence[str]]], Sequence[bool]],
    reflection: Callable[[int, Task], str],
    *,
    n: int,
    keep: int,
) -> dict[str, list[str]]:
    """Try each task until it is solved, up to ``n`` times, with reflections on earlier trials.

    Args:
        tasks: the tasks to try.
        play: runs a trial of some tasks, given each task's reflections by its id; returns True for
            each failed task.
        reflection: returns the reflection on a failed trial; "" for none.
        n: maximum trials per task.
        keep: number of latest reflections that the agent gets.

    Returns:
        Each task's final reflections, by task id.
    """
    reflections: dict[str, list[str]] = {task.id: [] for task in tasks}
    waiting: Sequence[Task] = tasks
    for trial in range(n):
        both = zip(waiting, play(trial, waiting, reflections), strict=True) if waiting else ()
        waiting = [task for task, failed in both if failed]
        for task in waiting if trial < n - 1 else ():
            if text := reflection(trial, task):
                reflections[task.id] = [*reflections[task.id], text][-keep:]
    return reflections


def solved_shares(outcomes: Collection[tuple[str, int, bool]], n: int) -> tuple[float, ...]:
    """Return the share of tasks solved by the end of each trial.

    A solved task stays solved. An unsolved task counts only up to its last finished episode, as an
    episode lost to a fault is not a failure.

    Args:
        outcomes: task id, index of the trial from 0, and success of each finished episode.
        n: number of trials.

    Example:
        >>> solved_shares([("a", 0, False), ("b", 0, True), ("a", 1, True)], 2)
        (0.5, 1.0)

    Source: Reflexion (arXiv 2303.11366), success after each trial.
    """
    rates = []
    for last in range(n):
        solved = {id for id, trial, success in outcomes if trial <= last and success}
        tried = solved | {id for id, trial, _ in outcomes if trial == last}
        rates.append(len(solved) / len(tried) if tried else math.nan)
    return tuple(rates)


class CutAtRepeats(StoppingAgent):
    """An agent whose episodes end when an action repeats the previous action."""

    def stop(self, view: View) -> Act | None:
        """End the episode if the last two actions are identical."""
        actions = [step.action for step in view.history[-2:]]
        return Act("", end=EndReason.AGENT_DONE) if ends_with_repeat(actions) else None


def ends_with_repeat(actions: Sequence[str]) -> bool:
    """Return True if the last two actions are identical.

    Example:
        >>> ends_with_repeat(["look", "go north", "go north"])
        True
    """
    return len(actions) > 1 and actions[-1] == actions[-2]


def reflection_cues(reflections: Iterable[str]) -> tuple[Cue, ...]:
    """Return the cues that show reflections to the agent in the next trial."""
    return tuple(Cue(text, place="first", id="reflection") for text in reflections)
