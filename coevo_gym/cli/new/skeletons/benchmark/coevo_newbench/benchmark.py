"""The benchmark behind the seam that curricula and trainers know."""

from __future__ import annotations

from coevo_gym.core.trajectory import Step
from coevo_gym.envs.folder import ProposableFolder

from . import builder, proposals, tasks
from .choices import choices


class NewbenchBenchmark(ProposableFolder):
    """Newbench, answered by the modules of this folder."""

    name = "newbench"
    env_id = "Newbench-v0"
    subsets: tuple[str, ...] = ()

    def symbol(self, step: Step) -> str:
        """One of open, take, put, done; "!" for an action that did nothing."""
        return "!" if step.error_kind else step.calls[0]


BENCHMARK = NewbenchBenchmark(tasks, builder, choices, proposals)
