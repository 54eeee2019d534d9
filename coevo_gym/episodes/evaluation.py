"""Evaluation: raw envs, evaluation types, nothing learned.

What comes out is an :class:`Evaluation` of :class:`EvalTrajectory`, a type that nothing that
records, trains or explores accepts. That is why any split may be evaluated, the training split
too; a mixture of splits may not, since its rate would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError
from coevo_gym.core.seams import Agent
from coevo_gym.core.stats import success_rate
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.episodes.episode import EvalEpisode, Finished, Lost, Outcome
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import Mode, Runner, episode_seed


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well an agent does on some tasks.

    Attributes:
        split: the split of all its tasks.
        success_rate: mean over tasks of the share of episodes that succeeded (AppWorld's task goal
            completion); tasks whose episodes were all lost are left out.
        scenario_success_rate: share of scenarios of which every episode succeeded (AppWorld's
            scenario goal completion). A lost episode takes its scenario out; 0 if none is left.
        low: lower end of the rate's 95 % Wilson interval, in which each task counts once.
        high: upper end.
        mean_score: mean over tasks of the mean score of their episodes, in [0, 1].
        env_steps: env steps taken.
        faults: episodes lost to the engine or the model; in none of the numbers above.
        episodes: the finished episodes, in task order; those of one task follow each other.
    """

    split: Split
    success_rate: float
    scenario_success_rate: float
    low: float
    high: float
    mean_score: float
    env_steps: int
    faults: int
    episodes: tuple[EvalTrajectory, ...]

    @property
    def by_task(self) -> Mapping[str, Sequence[EvalTrajectory]]:
        """The finished episodes by task id, in task order."""
        return _by_task(self.episodes)

    def metrics(self) -> dict[str, float]:
        """Its numbers, for any sink."""
        return {
            "tasks": float(len(self.by_task)),
            "episodes": float(len(self.episodes)),
            "success_rate": self.success_rate,
            "success_rate_low": self.low,
            "success_rate_high": self.high,
            "scenario_success_rate": self.scenario_success_rate,
            "mean_score": self.mean_score,
            "env_steps": float(self.env_steps),
            "faults": float(self.faults),
        }


def seed_of_sample(seed: int, task: Task, sample: int) -> int:
    """Return the seed of the env in one of a task's evaluation episodes.

    Args:
        seed: the seed of the evaluation.
        task: what is evaluated on.
        sample: which of the task's episodes it is, from 0.
    """
    return episode_seed(seed, f"{task.id}/{sample}" if sample else task.id)


def evaluate(
    agent: Agent,
    tasks: Sequence[Task],
    envs: EnvPool,
    *,
    seed: int = 0,
    samples: int = 1,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
) -> Evaluation:
    """Run one episode of each task, or several, and count.

    Nothing that guides an agent beyond its task can be passed.

    Args:
        agent: who acts; with one sample usually greedily, ``ChoiceAgent.greedy()``.
        tasks: what to run, all of one split.
        envs: raw envs, without a curriculum or an interface around them.
        seed: with the task's id, it seeds the episode's env.
        samples: episodes of each task, at least 1.
        on_done: told how many episodes are over, whenever that has changed.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.

    Raises:
        ConfigError: if there is no task, or the tasks are of several splits.
        TaskError: if one is an open task.
        EnvBackendError: if every episode was lost, the first one to its engine.
        ModelError: if every episode was lost, the first one to the model.
    """
    parts = [(agent, tasks)]
    return evaluate_each(parts, envs, seed=seed, samples=samples, on_done=on_done, mode=mode)


def evaluate_each(
    parts: Sequence[tuple[Agent, Sequence[Task]]],
    envs: EnvPool,
    *,
    seed: int = 0,
    samples: int = 1,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
) -> Evaluation:
    """Evaluate each agent on tasks of its own, and count all of them together.

    Args:
        parts: agents and what each runs; all tasks are of one split.
        envs: raw envs.
        seed: with a task's id, it seeds the episode's env.
        samples: episodes of each task, at least 1.
        on_done: told how many episodes are over, those of earlier agents included.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.

    Raises:
        ConfigError, TaskError, EnvBackendError, ModelError: as in :func:`evaluate`.
    """
    splits = {task.require_asked("evaluate").split for _, tasks in parts for task in tasks}
    if len(splits) != 1:
        raise ConfigError(
            f"evaluate needs tasks of exactly one split, actual: {sorted(splits) or 'no tasks'}"
        )
    outcomes = list[Outcome[EvalTrajectory]]()
    for agent, tasks in parts:
        wanted = [
            EvalEpisode(task, seed_of_sample(seed, task, sample))
            for task in tasks
            for sample in range(samples)
        ]
        found = list[Outcome[EvalTrajectory]]()
        for outcome in Runner(envs, mode).run(wanted, agent):
            found.append(outcome)
            if on_done:
                on_done(len(outcomes) + len(found))
        outcomes += sorted(found, key=lambda outcome: outcome.index)
    ran = [task for _, tasks in parts for task in tasks for _ in range(samples)]
    return _counted(splits.pop(), ran, outcomes)


def _by_task(episodes: Iterable[EvalTrajectory]) -> dict[str, list[EvalTrajectory]]:
    found: dict[str, list[EvalTrajectory]] = {}
    for episode in episodes:
        found.setdefault(episode.task_id, []).append(episode)
    return found


def _counted(
    split: Split, tasks: Sequence[Task], outcomes: Sequence[Outcome[EvalTrajectory]]
) -> Evaluation:
    """The evaluation of what came of each episode, whose tasks are ``tasks``."""
    episodes = tuple(found.record for found in outcomes if isinstance(found, Finished))
    lost = [found for found in outcomes if isinstance(found, Lost)]
    if not episodes:
        first = lost[0].error
        kind = ModelError if isinstance(first, ModelError) else EnvBackendError
        raise kind(
            f"All {len(lost)} evaluation episodes were lost, the first because: {first}"
        ) from first
    tried = _by_task(episodes).values()
    rate = success_rate([_mean([episode.success for episode in each]) for each in tried])
    return Evaluation(
        split=split,
        success_rate=rate.success,
        scenario_success_rate=_scenario_success_rate(tasks, outcomes),
        low=rate.low,
        high=rate.high,
        mean_score=_mean([_mean([episode.score for episode in each]) for each in tried]),
        env_steps=sum(found.env_steps for found in outcomes),
        faults=len(lost),
        episodes=episodes,
    )


def _scenario_success_rate(
    tasks: Sequence[Task], outcomes: Sequence[Outcome[EvalTrajectory]]
) -> float:
    """The share of scenarios all of whose episodes succeeded, of those that lost none."""
    of_scenario: dict[str, list[Outcome[EvalTrajectory]]] = {}
    for task, outcome in zip(tasks, outcomes, strict=True):
        of_scenario.setdefault(task.scenario, []).append(outcome)
    solved = [
        all(isinstance(outcome, Finished) and outcome.record.success for outcome in each)
        for each in of_scenario.values()
        if not any(isinstance(outcome, Lost) for outcome in each)
    ]
    return sum(solved) / len(solved) if solved else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
