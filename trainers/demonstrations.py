"""Demonstrations for imitation: decisions from reference solutions and accepted rollouts.

Only decisions of training tasks are imitated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import ChoiceDecision, Decision, EndReason, Group, Trajectory, View
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, run_one
from coevo_gym.episodes.episode import Fault
from coevo_gym.episodes.runner import episode_seed

__all__ = ["Demonstrations", "Demonstrator", "demonstrate", "demonstrations_from_rollouts"]


class Demonstrations(NamedTuple):
    """Decisions to imitate, grouped by task.

    Attributes:
        decisions: decisions of each task, in order; several episodes of a task are concatenated.
        skipped: number of steps without a decision, because the reference action was not among the
            choices or did not fit into the context.
        unsolved: number of episodes left out because they did not solve their task, scored too low
            or were lost to an engine fault.
        env_steps: number of env steps taken to collect the demonstrations.
    """

    decisions: tuple[tuple[Decision, ...], ...]
    skipped: int
    unsolved: int
    env_steps: int

    @property
    def texts(self) -> list[str]:
        """Instructions and observations that the policy saw at each choice."""
        decisions = [decision for task in self.decisions for decision in task]
        views = [d.context for d in decisions if isinstance(d, ChoiceDecision)]
        return [text for view in views for text in (view.instruction, view.observation)]


class Demonstrator(Protocol):
    """An agent that can construct the policy decision that would produce a given action."""

    def decision_for(self, view: View, action: str) -> Decision | None:
        """Return a decision that produces ``action`` in ``view``, or None if that is impossible."""
        ...


def demonstrate(
    tasks: Sequence[Task],
    envs: EnvPool,
    benchmark: Benchmark,
    agent: Demonstrator,
    *,
    seed: int = 0,
) -> Demonstrations:
    """Run the reference solutions to training tasks and collect a decision for each action.

    An episode lost to an engine fault is left out, with a warning. The seed and the task's id
    determine the env's seed.

    Raises:
        EnvBackendError: if all episodes were lost.
        SplitLeakError: if a task is not a training task.
    """
    for task in tasks:
        _require_imitable(task)
    decisions: list[tuple[Decision, ...]] = []
    skipped = env_steps = 0
    fault: Fault | None = None
    for task in tasks:
        # Free-form code can be demonstrated only as text, not as a choice.
        reciter = _Reciter(benchmark.demonstration(task) or task.solution, agent)
        outcome = run_one(TrainingEpisode(task, episode_seed(seed, task.id)), reciter, envs)
        skipped += reciter.skipped
        env_steps += outcome.env_steps
        if isinstance(outcome, Finished):
            if outcome.record.success:
                every = (step.decision for step in outcome.record.steps)
                decisions.append(tuple(decision for decision in every if decision is not None))
        elif outcome.reason is not EndReason.ABANDONED:
            fault = fault or outcome.error
    if fault and not decisions:
        raise fault
    return Demonstrations(tuple(decisions), skipped, len(tasks) - len(decisions), env_steps)


class _Reciter:
    """An agent that follows a reference solution and records a policy decision for each action.

    It abandons the episode if the reference is exhausted before the episode ends.
    """

    def __init__(self, actions: Sequence[str], agent: Demonstrator) -> None:
        self.skipped = 0
        self._actions = actions
        self._agent = agent

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return the solution's next action for each view, as a policy decision."""
        return [self._next_act(view) for view in views]

    def _next_act(self, view: View) -> Act:
        step = len(view.history)
        if step == len(self._actions):
            return Act("", said="The reference is over.", end=EndReason.ABANDONED)
        action = self._actions[step]
        decision = self._agent.decision_for(view, action)
        self.skipped += decision is None
        return Act(action, decision)


def demonstrations_from_rollouts(groups: Sequence[Group], *, above: float) -> Demonstrations:
    """Collect decisions from rollouts that scored well (ReST's Improve step, arXiv 2308.08998).

    Only rollouts with a score strictly ``above`` this value are imitated; incomplete groups are
    allowed.

    Returns:
        The decisions of each task with accepted rollouts. All rollouts of a task stay together, so
        that a task is never both trained on and held out. ``env_steps`` is 0, because the env steps
        were counted during sampling.

    Raises:
        SplitLeakError: if a task is not a training task, or an episode was an evaluation.
    """
    by_task: dict[str, list[Decision]] = {}
    skipped = unsolved = 0
    for group in groups:
        _require_imitable(group.task)
        for trajectory in group.trajectories:
            if not isinstance(trajectory, Trajectory):
                raise SplitLeakError(
                    f"Only training rollouts can be imitated, but the group of {group.task.name} "
                    f"contains a {type(trajectory).__name__}."
                )
            if trajectory.score <= above:
                unsolved += 1
                continue
            decisions = [step.decision for step in trajectory.steps if step.decision is not None]
            skipped += len(trajectory.steps) - len(decisions)
            if decisions:
                by_task.setdefault(group.task.id, []).extend(decisions)
    return Demonstrations(tuple(map(tuple, by_task.values())), skipped, unsolved, 0)


def _require_imitable(task: Task) -> None:
    if task.split is not Split.TRAIN:
        raise SplitLeakError(
            f"{task.name} is a {task.split} task. Only solutions to training tasks can be imitated."
        )
    task.require_goal("imitate")
