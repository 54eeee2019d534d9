"""The base class for single-folder benchmarks, and interfaces for their modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from numpy.random import Generator

from coevo_gym.core.benchmark import Evidence, PanelEntry, Replay, entry_of_whole_task
from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task, parse_split
from coevo_gym.core.task_file import TaskList
from coevo_gym.core.trajectory import Trajectory, View
from coevo_gym.envs.profile import FILE, EnvProfile, read_profile
from coevo_gym.envs.proposals import check_context
from coevo_gym.envs.tags import scenario_tags


class TasksModule(Protocol):
    """The interface that a benchmark folder's ``tasks.py`` must implement."""

    def native_tasks(self, split: Split, subset: str | None = None) -> Sequence[Task]:
        """Return the native tasks of a split, always in the same order."""

    def split_of(self, scenario: str) -> Split:
        """Return the split of a scenario."""

    def side_of(self, task: Task) -> Split:
        """Return the split that a task's content belongs to, even if the task claims another."""


class BuilderModule(Protocol):
    """The interface that a benchmark folder's ``builder.py`` must implement."""

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Turn an exploration trajectory into task drafts."""

    def build(self, draft: Draft) -> Task:
        """Build a task from a draft by running the draft's actions."""

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Run a list of actions in a fresh engine and return their effects."""

    def evidence(self, task: Task) -> Evidence:
        """Return the facts that the verdict on an episode depends on."""


class ProposalsModule(Protocol):
    """The interface that a benchmark folder's ``proposals.py`` must implement."""

    def open_task(self, task: Task) -> Task:
        """Return a copy of a task for exploration: its world without a request."""

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """Return the draft that a proposal describes."""


class ProposableFolder:
    """A benchmark that is implemented in one folder and can be explored by models.

    A subclass adds ``name``, ``env_id``, ``subsets`` and ``symbol`` to make it a
    :class:`~coevo_gym.core.benchmark.Proposable`.

    Args:
        tasks: the folder's ``tasks`` module.
        builder: its ``builder`` module.
        choices: function that returns the actions a scoring policy may choose from.
        proposals: its ``proposals`` module.
    """

    name: str

    def __init__(
        self,
        tasks: TasksModule,
        builder: BuilderModule,
        choices: Callable[[View], tuple[str, ...]],
        proposals: ProposalsModule,
    ) -> None:
        self._tasks, self._builder = tasks, builder
        self._choices, self._proposals = choices, proposals

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Return the tasks in one of :data:`NATIVE_SPLITS`; see the benchmark's ``tasks.py``.

        Raises:
            TaskError: if the split or subset is unknown.
        """
        split = parse_split(split)
        if split not in NATIVE_SPLITS:
            raise TaskError(
                f"{self.name} has no native {split} tasks. To hold out a share of the training "
                "scenarios, set hold_out, for example hold_out=0.2."
            )
        native = self._tasks.native_tasks(split, subset)
        return TaskList(native) if isinstance(native, tuple) else native

    def split_of(self, scenario: str) -> Split:
        """Return the split of a scenario."""
        return self._tasks.split_of(scenario)

    def side_of(self, task: Task) -> Split:
        """Return the split that a task's content belongs to; see the benchmark's ``tasks.py``."""
        return self._tasks.side_of(task)

    def scenarios_of(self, task: Task) -> Collection[str]:
        """Return the scenarios of the native tasks that share the task's goal; () if unknown.

        They come from a function ``scenarios_of`` in the benchmark's ``tasks.py``, if it has one.
        """
        method = getattr(self._tasks, "scenarios_of", None)
        scenarios: Collection[str] = () if method is None else method(task)
        return scenarios

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Turn an exploration trajectory into drafts; see the benchmark's ``builder.py``."""
        return self._builder.drafts(trace, context, rng)

    def build(self, draft: Draft) -> Task:
        """Build a task by running a draft's actions; see the benchmark's ``builder.py``."""
        return self._builder.build(draft)

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Replay a list of actions; see :meth:`coevo_gym.core.benchmark.Benchmark.replay`."""
        return self._builder.replay(task.require_goal("replay"), actions, to_error=to_error)

    def evidence(self, task: Task) -> Evidence:
        """Return the facts that a verdict depends on; see the benchmark's ``builder.py``."""
        return self._builder.evidence(task.require_goal("judge"))

    def choices(self, view: View) -> tuple[str, ...]:
        """Return the actions a scoring policy may choose; see the benchmark's ``choices.py``."""
        return self._choices(view)

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return a task's tags.

        They come from a function ``tags_of`` in the benchmark's ``tasks.py``, if it has one.
        Otherwise a single tag names the scenario.
        """
        tags: tuple[str, ...] = getattr(self._tasks, "tags_of", scenario_tags)(task)
        return tags

    def panel_entry(self, task: Task) -> PanelEntry:
        """Return a task's panel entry: keys that identify it in other code bases, and its content.

        They come from a function ``panel_entry`` in the benchmark's ``tasks.py``, if it has one.
        Otherwise there is no place, and all the content is one part.
        """
        entry: PanelEntry = getattr(self._tasks, "panel_entry", entry_of_whole_task)(task)
        return entry

    def data_versions(self, task: Task) -> Mapping[str, str]:
        """Return the versions and hashes of the data that a native task is made from.

        They come from a function ``data_versions`` in the benchmark's ``tasks.py``, if it has one.
        """
        method = getattr(self._tasks, "data_versions", None)
        versions: Mapping[str, str] = {} if method is None else method(task)
        return versions

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return a demonstration for imitation learning. The default is the task's solution."""
        return task.solution

    @property
    def profile(self) -> EnvProfile:
        """The benchmark's profile, read from its ``profile.toml``.

        Raises:
            ConfigError: if the folder has no valid profile.
        """
        module = sys.modules[type(self).__module__].__file__
        return read_profile(Path(str(module)).with_name(FILE))

    def open(self, task: Task) -> Task:
        """Return a goal-free copy of a task to explore; see the benchmark's ``proposals.py``."""
        return self._proposals.open_task(task)

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """Return the draft that a proposal describes; see the benchmark's ``proposals.py``."""
        check_context(self.name, context)
        return self._proposals.draft(proposal, context)
