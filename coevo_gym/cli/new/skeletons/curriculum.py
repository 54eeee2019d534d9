"""A curriculum that prefers tasks with fewer visits.

``coevo train`` and ``coevo resume`` load it from the folder in a run's settings::

    [plugins]
    methods = "FOLDER"

Set ``arms = ["static", "newcurriculum"]`` to compare it with a fixed set of tasks.
``python newcurriculum.py`` checks that it keeps the curriculum contract.
"""

from __future__ import annotations

from typing import ClassVar

import coevo_gym
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.signal_growth import SignalGrowth
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.testing.curriculum import assert_curriculum_contract


class NewcurriculumSelector(TableSelector):
    """A selector that weights a task by 1 / (1 + visits). The base class saves its state.

    Selectors are pure: they do not use files, clocks or random numbers.
    """

    columns: ClassVar = {"visits": 0.0}

    def weights(self) -> Numbers:
        """Return (n,) positive weights for the tasks in the pool."""
        return 1.0 / (1.0 + self.table["visits"])

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Count a visit to a task, regardless of the outcomes of its episodes."""
        self.table["visits"][row] += 1.0


@method("newcurriculum", curriculum={"growth": {"kind": "none"}})
def newcurriculum(kit: Kit) -> Method:
    """Prefer tasks with fewer visits."""
    return Method(
        curriculum=PoolCurriculum(
            selector=NewcurriculumSelector(), growth=SignalGrowth(kit.curriculum)
        ),
        evolver=kit.evolver(kit.explorer()),
        first_round=kit.first_round(kit.curriculum.initial_size),
        learner=kit.learner,
    )


if __name__ == "__main__":
    tasks = coevo_gym.tasks("webshop")[:12]
    assert_curriculum_contract(lambda: PoolCurriculum(tasks, selector=NewcurriculumSelector()))
    print("newcurriculum keeps the contract of a curriculum.")
