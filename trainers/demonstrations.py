"""Demonstrations: decisions of references and of the best rollouts, to be imitated.

What is imitated are decisions of training tasks only.

Source of learning from accepted rollouts: ReST (arXiv 2308.08998), whose Improve step fine-tunes
on samples with a reward above a threshold.
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

__all__ = ["Demonstrations", "Demonstrator", "accepted_rollouts", "demonstrate"]


class Demonstrations(NamedTuple):
    """What to imitate, as decisions.

    Attributes:
        decisions: those of each task, in order; several episodes of it one after the other.
        skipped: steps that no decision stands for: the reference action was not among the
            choices, or there was no room for it in the context.
        unsolved: episodes left out, because they did not solve their task, scored too low, or were
            lost to an engine.
        env_steps: env steps taken to find them.
    """

    decisions: tuple[tuple[Decision, ...], ...]
    skipped: int
    unsolved: int
    env_steps: int

    @property
    def texts(self) -> list[str]:
        """Instructions and observations that choices were made in, for word weights."""
        decisions = [decision for task in self.decisions for decision in task]
        views = [d.context for d in decisions if isinstance(d, ChoiceDecision)]
        return [text for view in views for text in (view.instruction, view.observation)]


class Demonstrator(Protocol):
    """An agent that knows which decision of its policy would have led to an action."""

    def demonstrate(self, view: View, action: str) -> Decision | None:
        """The decision that leads to ``action`` in ``view``; None if none does."""
        ...


def demonstrate(
    tasks: Sequence[Task],
    envs: EnvPool,
    benchmark: Benchmark,
    agent: Demonstrator,
    *,
    seed: int = 0,
) -> Demonstrations:
    """Run the references of training tasks, and note the decisions that would have led to them.

    An episode that is lost to an engine is left out, with a warning.

    Args:
        tasks: whose references to run.
        envs: where to.
        benchmark: says what to do in each task.
        agent: whose decisions they become.
        seed: with the task's id, it seeds the episode's env.

    Raises:
        EnvBackendError: if all were lost.
        SplitLeakError: if a task is not a training task.
    """
    for task in tasks:
        _check_split(task)
    decisions: list[tuple[Decision, ...]] = []
    skipped = env_steps = 0
    fault: Fault | None = None
    for task in tasks:
        # Free code is no choice that could be demonstrated, but what a text can be.
        reciter = _Reciter(benchmark.demonstration(task) or task.solution, agent)
        found = run_one(TrainingEpisode(task, episode_seed(seed, task.id)), reciter, envs)
        skipped += reciter.skipped
        env_steps += found.env_steps
        if isinstance(found, Finished):
            if found.record.success:
                taken = (step.decision for step in found.record.steps)
                decisions.append(tuple(decision for decision in taken if decision is not None))
        elif found.reason is not EndReason.ABANDONED:
            fault = fault or found.error
    if fault and not decisions:
        raise fault
    return Demonstrations(tuple(decisions), skipped, len(tasks) - len(decisions), env_steps)


class _Reciter:
    """Plays a reference, and asks a policy's agent which decisions would have led to it.

    It gives up if the reference is over and the episode is not.
    """

    def __init__(self, actions: Sequence[str], agent: Demonstrator) -> None:
        self.skipped = 0
        self._actions = actions
        self._agent = agent

    def act(self, views: Sequence[View]) -> list[Act]:
        """The reference's next action, and the decision that would have led to it."""
        return [self._next(view) for view in views]

    def _next(self, view: View) -> Act:
        step = len(view.history)
        if step == len(self._actions):
            return Act("", said="The reference is over.", end=EndReason.ABANDONED)
        action = self._actions[step]
        decision = self._agent.demonstrate(view, action)
        self.skipped += decision is None
        return Act(action, decision)


def accepted_rollouts(groups: Sequence[Group], *, above: float) -> Demonstrations:
    """Take the decisions of rollouts that scored well: ReST's Improve step.

    Args:
        groups: what was sampled in training; they need not be whole.
        above: rollouts with a score above this are imitated, those at it are not.

    Returns:
        The decisions of each task that has any. Rollouts of the same task are kept together, so
        that none of them is trained on while another is held out. Their env steps were counted
        when they were sampled, and are 0 here.

    Raises:
        SplitLeakError: if a task is not a training task, or an episode was an evaluation.
    """
    by_task: dict[str, list[Decision]] = {}
    skipped = unsolved = 0
    for group in groups:
        _check_split(group.task)
        for trajectory in group.trajectories:
            if not isinstance(trajectory, Trajectory):
                raise SplitLeakError(
                    f"A {type(trajectory).__name__} of {group.task.name} must not be imitated."
                )
            if trajectory.score <= above:
                unsolved += 1
                continue
            taken = [step.decision for step in trajectory.steps if step.decision is not None]
            skipped += len(trajectory.steps) - len(taken)
            if taken:
                by_task.setdefault(group.task.id, []).extend(taken)
    return Demonstrations(tuple(map(tuple, by_task.values())), skipped, unsolved, 0)


def _check_split(task: Task) -> None:
    if task.split is not Split.TRAIN:
        raise SplitLeakError(
            f"{task.name} is a {task.split} task; only training tasks may be imitated."
        )
    task.require_asked("imitate")
