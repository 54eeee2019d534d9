"""Evaluation: raw envs, evaluation types, nothing learned.

What comes out is an :class:`Evaluation` of :class:`EvalTrajectory`, a type that nothing that
records, trains or explores accepts. That is why any split may be evaluated, the training split
too; a mixture of splits may not, since its rate would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError
from coevo_gym.core.seams import Agent
from coevo_gym.core.stats import wilson_interval
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
        success_rate: share of episodes that succeeded (AppWorld's task goal completion).
        scenario_success_rate: share of scenarios of which every episode succeeded (AppWorld's
            scenario goal completion). A lost episode takes its scenario out; 0 if none is left.
        low: lower end of the rate's 95 % Wilson interval.
        high: upper end.
        mean_score: mean of the benchmark's own score, in [0, 1].
        env_steps: env steps taken.
        faults: episodes lost to the engine or the model; in none of the numbers above.
        episodes: the finished episodes, in task order.
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

    def metrics(self) -> dict[str, float]:
        """Its numbers, for any sink."""
        return {
            "episodes": float(len(self.episodes)),
            "success_rate": self.success_rate,
            "success_rate_low": self.low,
            "success_rate_high": self.high,
            "scenario_success_rate": self.scenario_success_rate,
            "mean_score": self.mean_score,
            "env_steps": float(self.env_steps),
            "faults": float(self.faults),
        }


def evaluate(
    agent: Agent,
    tasks: Sequence[Task],
    envs: EnvPool,
    *,
    seed: int = 0,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
) -> Evaluation:
    """Run one episode of each task and count.

    Nothing that guides an agent beyond its task can be passed.

    Args:
        agent: who acts; greedy for a policy under training, ``ChoiceAgent.greedy()``.
        tasks: what to run, all of one split.
        envs: raw envs, without a curriculum or an interface around them.
        seed: with the task's id, it seeds the episode's env.
        on_done: told how many episodes are over, whenever that has changed.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.

    Raises:
        ConfigError: if there is no task, or the tasks are of several splits.
        TaskError: if one is an open task.
        EnvBackendError: if every episode was lost, the first one to its engine.
        ModelError: if every episode was lost, the first one to the model.
    """
    return evaluate_each([(agent, tasks)], envs, seed=seed, on_done=on_done, mode=mode)


def evaluate_each(
    parts: Sequence[tuple[Agent, Sequence[Task]]],
    envs: EnvPool,
    *,
    seed: int = 0,
    on_done: Callable[[int], None] | None = None,
    mode: Mode = "lock_step",
) -> Evaluation:
    """Evaluate each agent on tasks of its own, and count all of them together.

    Args:
        parts: agents and what each runs; all tasks are of one split.
        envs: raw envs.
        seed: with a task's id, it seeds the episode's env.
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
        wanted = [EvalEpisode(task, episode_seed(seed, task.id)) for task in tasks]
        found = list[Outcome[EvalTrajectory]]()
        for outcome in Runner(envs, mode).run(wanted, agent):
            found.append(outcome)
            if on_done:
                on_done(len(outcomes) + len(found))
        outcomes += sorted(found, key=lambda outcome: outcome.index)
    return _counted(splits.pop(), [task for _, tasks in parts for task in tasks], outcomes)


def _counted(
    split: Split, tasks: Sequence[Task], outcomes: Sequence[Outcome[EvalTrajectory]]
) -> Evaluation:
    """The evaluation of what came of each task."""
    episodes = tuple(found.record for found in outcomes if isinstance(found, Finished))
    lost = [found for found in outcomes if isinstance(found, Lost)]
    if not episodes:
        first = lost[0].error
        kind = ModelError if isinstance(first, ModelError) else EnvBackendError
        raise kind(
            f"All {len(lost)} evaluation episodes were lost, the first because: {first}"
        ) from first
    successes = sum(episode.success for episode in episodes)
    low, high = wilson_interval(successes, len(episodes))
    return Evaluation(
        split=split,
        success_rate=successes / len(episodes),
        scenario_success_rate=_scenario_success_rate(tasks, outcomes),
        low=low,
        high=high,
        mean_score=sum(episode.score for episode in episodes) / len(episodes),
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
