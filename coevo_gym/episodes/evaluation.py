"""Evaluation of agents in raw envs, without any learning.

Runs and ``coevo eval`` share one function, :func:`evaluate`. Its episodes are
:class:`EvalTrajectory`, a type that code for recording, training or exploring does not accept. Any
single split can therefore be evaluated, including the training split. The success rate of a mixture
of splits would be meaningless, so a mixture is rejected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from coevo_gym.core.errors import BudgetSpent, ConfigError
from coevo_gym.core.seams import Agent
from coevo_gym.core.stats import Rate, success_at_k, success_rate
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.diagnosis import stored_failure
from coevo_gym.envs.tags import kind_of_tag, tags_from, tags_of, value_of_tag
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import AnswerCounts, EvalEpisode, Finished, Lost, all_lost_error
from coevo_gym.episodes.runner import Admission, Mode, Runner, episode_seed
from coevo_gym.store.eval_folder import EvalLine, Key
from coevo_gym.store.reader import EvaluatedTask

SUBSET = "subset"
"""The kind of tags that contain the benchmark's own name for a part of its tasks."""

Parts = Iterable[tuple[Agent, Sequence[Task]]]
"""Agents, each with the tasks that it runs."""
Players = Callable[[int, int, Sequence[Task]], AbstractContextManager[Parts]]
"""A function that takes the index of a sample (from 0), the number of its stored episodes, and the
remaining tasks. It returns a context in which agents run these tasks."""


@dataclass(frozen=True)
class Evaluation:
    """An agent's results on a set of tasks.

    Attributes:
        tasks: the tasks to run, all of one split.
        samples: episodes per task.
        lines: the result of each finished episode, in task order.
        lost_steps: env steps of episodes that were lost to the engine or the model.
        episodes: the trajectories that are in memory, in the order of the lines.
    """

    tasks: Sequence[Task]
    samples: int
    lines: tuple[EvalLine, ...]
    lost_steps: int = 0
    episodes: tuple[EvalTrajectory, ...] = ()

    @property
    def split(self) -> Split:
        """The split to which all of the tasks belong."""
        return self.tasks[0].split

    @cached_property
    def by_task(self) -> Mapping[str, Sequence[EvalLine]]:
        """The finished episodes, keyed by task id. Tasks without finished episodes are omitted."""
        return by_task(self.lines)

    @cached_property
    def rate(self) -> Rate:
        """The success rate over tasks (AppWorld's task goal completion).

        It is the mean over tasks of the share of successful episodes. Its 95% Wilson interval
        counts each task once.
        """
        return rate_of(self.by_task.values())

    @property
    def success_rate(self) -> float:
        """The success rate over tasks; see :attr:`rate` for its confidence interval."""
        return self.rate.success

    @property
    def scenario_success_rate(self) -> float:
        """The share of scenarios in which every episode succeeded.

        This is AppWorld's scenario goal completion, excluding scenarios with a lost episode; NaN if
        no scenario is left.
        """
        wanted = Counter[str]()
        for task in self.tasks:
            wanted[task.scenario] += self.samples
        by_scenario: dict[str, list[EvalLine]] = {}
        for line in self.lines:
            by_scenario.setdefault(line.scenario, []).append(line)
        whole = [lines for name, lines in by_scenario.items() if len(lines) == wanted[name]]
        return _mean([float(all(line.success for line in lines)) for lines in whole])

    @property
    def mean_score(self) -> float:
        """The mean score in [0, 1], averaged over the episodes of each task and then over tasks."""
        tried = self.by_task.values()
        return _mean([_mean([line.score for line in lines]) for lines in tried])

    @property
    def n_lost(self) -> int:
        """The number of episodes lost to an engine or model fault. No metric includes them."""
        return len(self.tasks) * self.samples - len(self.lines)

    @property
    def mean_steps(self) -> float:
        """The mean number of env steps per finished episode."""
        return _mean([line.steps for line in self.lines])

    @property
    def env_steps(self) -> int:
        """The number of env steps taken, including those in lost episodes."""
        return sum(line.steps for line in self.lines) + self.lost_steps

    @property
    def end_reasons(self) -> Mapping[str, int]:
        """The number of episodes that ended for each reason."""
        return dict(sorted(Counter(line.end_reason for line in self.lines).items()))

    @property
    def answer_counts(self) -> AnswerCounts:
        """Counts of the agent's answers."""
        return AnswerCounts(
            sum(line.steps for line in self.lines),
            sum(line.empty for line in self.lines),
            sum(line.cut for line in self.lines),
            sum(line.invalid for line in self.lines),
        )

    @property
    def pass_at(self) -> Mapping[int, float]:
        """pass@k for several k; see :func:`pass_at`."""
        return pass_at(self.by_task.values(), self.samples)

    @property
    def rates_by_type(self) -> Mapping[str, Mapping[str, Rate]]:
        """Success rates by tag kind and value; see :func:`rates_by_type`."""
        return rates_by_type(self.by_task.values())

    def metrics(self) -> dict[str, float]:
        """Return the results as metrics, ready for any sink."""
        of_scenarios = self.scenario_success_rate
        return {
            "tasks": float(len(self.by_task)),
            "episodes": float(len(self.lines)),
            "success_rate": self.rate.success,
            "success_rate_low": self.rate.low,
            "success_rate_high": self.rate.high,
            "scenario_success_rate": 0.0 if math.isnan(of_scenarios) else of_scenarios,
            "mean_score": self.mean_score,
            "env_steps": float(self.env_steps),
            "faults": float(self.n_lost),
        }


class FinishedEpisodes:
    """In-memory storage for an evaluation's finished episodes, keyed by task id and sample."""

    def __init__(self) -> None:
        self.lines: dict[Key, EvalLine] = {}
        self.trajectories: dict[Key, EvalTrajectory] = {}

    def add(self, line: EvalLine, trajectory: EvalTrajectory) -> None:
        """Store a finished episode."""
        self.lines[line.key] = line
        self.trajectories[line.key] = trajectory

    def find_trajectory(self, key: Key) -> EvalTrajectory | None:
        """Return the trajectory of a finished episode, or None if it was not stored."""
        return self.trajectories.get(key)

    def add_lost(self, task: Task, sample: int, lost: Lost) -> None:
        """Handle an episode lost to a fault. By default, do nothing."""

    def make_evaluation(
        self, tasks: Sequence[Task], samples: int, lost_steps: int = 0
    ) -> Evaluation:
        """Return an evaluation of the stored episodes, in task order."""
        keys = [(task.id, sample) for task in tasks for sample in range(samples)]
        lines = tuple(self.lines[key] for key in keys if key in self.lines)
        episodes = tuple(self.trajectories[key] for key in keys if key in self.trajectories)
        return Evaluation(tasks, samples, lines, lost_steps, episodes)


def evaluate(
    agent: Agent | Players,
    tasks: Sequence[Task],
    envs: EnvPool,
    *,
    seed: int = 0,
    samples: int = 1,
    results: FinishedEpisodes | None = None,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
    admission: Admission | None = None,
) -> Evaluation:
    """Evaluate an agent by running one or more episodes of each task.

    There is no parameter for guidance, so an evaluated agent gets no cues.

    Args:
        agent: the agent, usually greedy for one sample (``ChoiceAgent.greedy()``); or a function
            that returns the agents and each agent's tasks for a sample.
        tasks: the tasks to run, all of one split.
        envs: raw envs, without a curriculum or an interface around them.
        seed: base seed; combined with the task's id and the sample, it seeds the episode's env.
        samples: episodes per task, at least 1. Every task is run once before any task is run
            again.
        results: finished episodes, which are not run again; new episodes are added as they end.
        on_done: called with the number of finished or lost episodes whenever it changes.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.
        admission: rule for when episodes begin. If it closes, live episodes are finished. If
            episodes are then missing, the reason is raised as an error.

    Raises:
        BudgetSpent: if a cap leaves no room for more episodes.
        ConfigError: if there is no task, or the tasks belong to several splits.
        TaskError: if a task is an open task.
        EnvBackendError: if no episode ever finished, and the first was lost to its engine.
        ModelError: if no episode ever finished, and the first was lost to the model.
    """
    splits = {task.require_goal("evaluate").split for task in tasks}
    if len(splits) != 1:
        raise ConfigError(
            f"evaluate needs tasks from exactly one split, got the splits {sorted(splits)}"
        )
    results = FinishedEpisodes() if results is None else results
    players = agent if callable(agent) else single_player(agent)
    admission = admission or Admission()
    done = sum((task.id, sample) in results.lines for task in tasks for sample in range(samples))
    lost: list[Lost] = []
    for sample in range(samples):
        waiting = [task for task in tasks if (task.id, sample) not in results.lines]
        if not waiting:
            continue
        with players(sample, len(tasks) - len(waiting), waiting) as parts:
            for player, part in parts:
                episodes = [EvalEpisode(task, seed_of_sample(seed, task, sample)) for task in part]
                for outcome in Runner(envs, mode, admission).run(episodes, player):
                    task = part[outcome.index]
                    if isinstance(outcome, Finished):
                        results.add(make_eval_line(task, sample, seed, outcome), outcome.record)
                        admission.record_usage(outcome.usage)
                    elif isinstance(outcome.error, BudgetSpent):
                        admission.closed = admission.closed or outcome.error
                        continue
                    else:
                        lost.append(outcome)
                        results.add_lost(task, sample, outcome)
                    done += 1
                    if on_done:
                        on_done(done)
        if admission.closed is not None and done < samples * len(tasks):
            raise admission.closed
    require_finished_episode(results, lost)
    return results.make_evaluation(tasks, samples, sum(one.env_steps for one in lost))


def require_finished_episode(
    results: FinishedEpisodes, lost: Sequence[Lost], what: str = "evaluation"
) -> None:
    """Check that at least one episode has finished, in this or an earlier session.

    Raises:
        EnvBackendError: if no episode ever finished, and the first was lost to its engine.
        ModelError: if no episode ever finished, and the first was lost to the model.
    """
    if lost and not results.lines:
        raise all_lost_error(len(lost), lost[0].error, f"{what} ") from lost[0].error


def seed_of_sample(seed: int, task: Task, sample: int) -> int:
    """Return the env seed for an episode of a task. Samples are numbered from 0."""
    return episode_seed(seed, f"{task.id}/{sample}" if sample else task.id)


def make_eval_line(task: Task, sample: int, seed: int, ended: Finished[EvalTrajectory]) -> EvalLine:
    """Return the results line for a finished evaluation episode."""
    answers = ended.answer_counts
    failure, failed_turn = stored_failure(task.benchmark, ended.record)
    return EvalLine(
        id=task.id,
        sample=sample,
        name=task.name,
        scenario=task.scenario,
        tags=types_of(task),
        success=ended.record.success,
        score=ended.record.score,
        steps=ended.env_steps,
        end_reason=str(ended.record.end_reason),
        seed=seed_of_sample(seed, task, sample),
        prompt_tokens=ended.usage.prompt_tokens,
        completion_tokens=ended.usage.completion_tokens,
        usd=ended.usage.usd,
        empty=answers.empty,
        cut=answers.cut,
        invalid=answers.invalid,
        failure=failure,
        failed_turn=failed_turn,
    )


# Results by type of task.


def types_of(task: Task) -> tuple[str, ...]:
    """Return a task's types as ``"kind:value"`` strings: its tags and its subset."""
    part = tags_from([(SUBSET, task.subset)])
    return tuple(sorted({*tags_of(task), *part}))


def to_evaluated_task(task: Task) -> EvaluatedTask:
    """Return the data to store for an evaluated task."""
    return EvaluatedTask(
        id=task.id,
        name=task.name,
        split=str(task.split),
        subset=task.subset,
        scenario=task.scenario,
        instruction=task.instruction,
        tags=types_of(task),
    )


# Metrics from the results of finished episodes, grouped by task; each task has at least one.


def by_task(lines: Iterable[EvalLine]) -> dict[str, list[EvalLine]]:
    """Group results by task id."""
    groups: dict[str, list[EvalLine]] = {}
    for line in lines:
        groups.setdefault(line.id, []).append(line)
    return groups


def rate_of(tried: Iterable[Sequence[EvalLine]]) -> Rate:
    """Return the success rate over tasks."""
    return success_rate([_mean([float(line.success) for line in lines]) for lines in tried])


def rates_by_type(tried: Iterable[Sequence[EvalLine]]) -> dict[str, dict[str, Rate]]:
    """Return the success rate for each type of task, keyed by tag kind and value."""
    of_tag: dict[str, list[Sequence[EvalLine]]] = {}
    for lines in tried:
        for tag in lines[0].tags:
            of_tag.setdefault(tag, []).append(lines)
    types: dict[str, dict[str, Rate]] = {}
    for tag in sorted(of_tag):
        types.setdefault(kind_of_tag(tag), {})[value_of_tag(tag)] = rate_of(of_tag[tag])
    return types


def pass_at(tried: Iterable[Sequence[EvalLine]], samples: int) -> dict[int, float]:
    """Return pass@k for several k up to ``samples``, or {} if each task was tried only once.

    pass@k is an unbiased estimate of the probability that at least one of k episodes succeeds, over
    tasks with at least k episodes.
    """
    if samples < 2:
        return {}
    all_outcomes = [[int(line.success) for line in lines] for lines in tried]
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    rates = {}
    for k in [*powers, samples]:
        outcomes = [tries for tries in all_outcomes if len(tries) >= k]
        if outcomes:
            rates[k] = success_at_k(outcomes, k).passed
    return rates


def single_player(agent: Agent) -> Players:
    """Return a function that assigns all tasks to one agent."""
    return lambda sample, done, waiting: nullcontext([(agent, waiting)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
