"""What all benchmark folders have in common: which of their modules answers what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from numpy.random import Generator

from coevo_gym.core.benchmark import Evidence, Replay
from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task, parse_split
from coevo_gym.core.task_file import TaskList
from coevo_gym.core.trajectory import Trajectory, View
from coevo_gym.envs.proposals import check_context
from coevo_gym.envs.tags import scenario_tags


class TasksModule(Protocol):
    """A folder's ``tasks.py``."""

    def native_tasks(self, split: Split, subset: str | None = None) -> Sequence[Task]:
        """Native tasks of a split, always in the same order."""
        ...

    def split_of(self, scenario: str) -> Split:
        """The split of a scenario."""
        ...

    def side_of(self, task: Task) -> Split:
        """The side that a task lies on by what it is."""
        ...


class BuilderModule(Protocol):
    """A folder's ``builder.py``."""

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Drafts from a walk."""
        ...

    def build(self, draft: Draft) -> Task:
        """A proven task from a draft."""
        ...

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """What a list of actions does."""
        ...

    def evidence(self, task: Task) -> Evidence:
        """What a verdict depends on."""
        ...


class ProposalsModule(Protocol):
    """A folder's ``proposals.py``."""

    def open_task(self, task: Task) -> Task:
        """The same world with nothing asked for."""
        ...

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """The draft that a proposal stands for."""
        ...


class FolderBenchmark:
    """The part of :class:`coevo_gym.core.benchmark.Benchmark` that a folder's modules answer.

    A subclass adds ``name``, ``env_id``, ``subsets`` and ``symbol``, and its own ``tags`` where it
    has more to say of a task than its scenario.

    Args:
        tasks: the folder's ``tasks`` module.
        builder: its ``builder`` module.
        choices: what a scorer may choose from.
    """

    name: str

    def __init__(
        self,
        tasks: TasksModule,
        builder: BuilderModule,
        choices: Callable[[View], tuple[str, ...]],
    ) -> None:
        self._tasks, self._builder, self._choices = tasks, builder, choices

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Native tasks; see ``native_tasks`` in the folder's ``tasks.py``.

        Args:
            split: one of :data:`NATIVE_SPLITS`, or its name.
            subset: the benchmark's own name for a part; None for all.

        Raises:
            TaskError: if there is no such split or subset.
        """
        split = parse_split(split)
        if split not in NATIVE_SPLITS:
            raise TaskError(
                f"No native task of {self.name} is {split}: only a share that is set aside is "
                "(hold_out)."
            )
        found = self._tasks.native_tasks(split, subset)
        return TaskList(found) if isinstance(found, tuple) else found

    def split_of(self, scenario: str) -> Split:
        """The split of a scenario."""
        return self._tasks.split_of(scenario)

    def side_of(self, task: Task) -> Split:
        """The side that a task lies on by what it is; see the folder's ``tasks.py``."""
        return self._tasks.side_of(task)

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Drafts from a walk; see the folder's ``builder.py``."""
        return self._builder.drafts(trace, context, rng)

    def build(self, draft: Draft) -> Task:
        """A proven task from a draft; see the folder's ``builder.py``."""
        return self._builder.build(draft)

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """What a list of actions does; see :meth:`coevo_gym.core.benchmark.Benchmark.replay`."""
        return self._builder.replay(task.require_asked("replay"), actions, to_error=to_error)

    def evidence(self, task: Task) -> Evidence:
        """What a verdict depends on; see the folder's ``builder.py``."""
        return self._builder.evidence(task.require_asked("judge"))

    def choices(self, view: View) -> tuple[str, ...]:
        """What a scorer may choose from; see the folder's ``choices.py``."""
        return self._choices(view)

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """The scenario, unless a folder says more."""
        return scenario_tags(task)

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """The solution itself, unless a folder says otherwise."""
        return task.solution


class ProposableFolder(FolderBenchmark):
    """A folder that models can explore, too: a :class:`~coevo_gym.core.benchmark.Proposable`.

    Args:
        tasks: the folder's ``tasks`` module.
        builder: its ``builder`` module.
        choices: what a scorer may choose from.
        proposals: its ``proposals`` module.
    """

    def __init__(
        self,
        tasks: TasksModule,
        builder: BuilderModule,
        choices: Callable[[View], tuple[str, ...]],
        proposals: ProposalsModule,
    ) -> None:
        super().__init__(tasks, builder, choices)
        self._proposals = proposals

    def open(self, task: Task) -> Task:
        """The same world with nothing asked for; see the folder's ``proposals.py``."""
        return self._proposals.open_task(task)

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """The draft that a proposal stands for; see the folder's ``proposals.py``."""
        check_context(self.name, context)
        return self._proposals.draft(proposal, context)
