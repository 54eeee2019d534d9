"""Evaluation: raw envs, evaluation types, nothing learned.

What comes out is an :class:`Evaluation` of :class:`EvalTrajectory`, a type that nothing that
records, trains or explores accepts. That is why any split may be evaluated, the training split
too; a mixture of splits may not, since its rate would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError
from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import Fault, episode_seed, play


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
) -> Evaluation:
    """Run one episode of each task and count.

    Args:
        agent: who acts; greedy for a policy under training, ``ChoiceAgent.greedy()``.
        tasks: what to run, all of one split.
        envs: raw envs, without a curriculum or an interface around them.
        seed: with the task's id, it seeds the episode's env.
        on_done: told how many episodes are over, whenever that has changed.

    Raises:
        ConfigError: if there is no task, or the tasks are of several splits.
        EnvBackendError: if every episode was lost, the first one to its engine.
        ModelError: if every episode was lost, the first one to the model.
    """
    return evaluate_each([(agent, tasks)], envs, seed=seed, on_done=on_done)


def _tell_all(on_done: Callable[[int], None], before: int, now: int) -> None:
    """Tell how many episodes are over, those of earlier agents included."""
    on_done(before + now)


def evaluate_each(
    parts: Sequence[tuple[Agent, Sequence[Task]]],
    envs: EnvPool,
    *,
    seed: int = 0,
    on_done: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate each agent on tasks of its own, and count all of them together.

    Args:
        parts: agents and what each runs; all tasks are of one split.
        envs: raw envs.
        seed: with a task's id, it seeds the episode's env.
        on_done: told how many episodes are over, those of earlier agents included.

    Raises:
        ConfigError, EnvBackendError, ModelError: as in :func:`evaluate`.
    """
    splits = {task.split for _, tasks in parts for task in tasks}
    if len(splits) != 1:
        raise ConfigError(
            f"evaluate needs tasks of exactly one split, actual: {sorted(splits) or 'no tasks'}"
        )

    def record(env: TaskEnv, index: int, acts: Sequence[Act]) -> EvalTrajectory:
        return env.eval_trajectory(acts=acts)

    outcomes, env_steps = list[EvalTrajectory | Fault](), 0
    for agent, tasks in parts:
        seeded = [(task, episode_seed(seed, task.id)) for task in tasks]
        tell = on_done and partial(_tell_all, on_done, len(outcomes))
        found, steps = play(seeded, agent, envs, record, tell)
        outcomes += found
        env_steps += steps
    faults = [outcome for outcome in outcomes if isinstance(outcome, Fault)]
    episodes = tuple(outcome for outcome in outcomes if isinstance(outcome, EvalTrajectory))
    if not episodes:
        kind = ModelError if isinstance(faults[0], ModelError) else EnvBackendError
        raise kind(
            f"All {len(faults)} evaluation episodes were lost, the first because: {faults[0]}"
        ) from faults[0]
    scenarios = [task.scenario for _, tasks in parts for task in tasks]
    successes = sum(episode.success for episode in episodes)
    low, high = wilson_interval(successes, len(episodes))
    return Evaluation(
        split=splits.pop(),
        success_rate=successes / len(episodes),
        scenario_success_rate=_scenario_success_rate(scenarios, outcomes),
        low=low,
        high=high,
        mean_score=sum(episode.score for episode in episodes) / len(episodes),
        env_steps=env_steps,
        faults=len(faults),
        episodes=episodes,
    )


def _scenario_success_rate(
    scenarios: Sequence[str], outcomes: Sequence[EvalTrajectory | Fault]
) -> float:
    """The share of scenarios all of whose episodes succeeded, of those that lost none."""
    solved: dict[str, bool] = {}
    for scenario, outcome in zip(scenarios, outcomes, strict=True):
        if isinstance(outcome, EvalTrajectory):
            solved[scenario] = solved.get(scenario, True) and outcome.success
    for scenario, outcome in zip(scenarios, outcomes, strict=True):
        if isinstance(outcome, Fault):
            solved.pop(scenario, None)
    return sum(solved.values()) / len(solved) if solved else 0.0
