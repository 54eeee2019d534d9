"""A curriculum: tasks that were practised less come more often.

``coevo train`` finds it in a folder that a run's settings name, and so does ``coevo resume``::

    [plugins]
    methods = "FOLDER"

Then ``arms = ["static", "newcurriculum"]`` puts it beside another. ``python newcurriculum.py``
checks that it keeps the contract of a curriculum.
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
    """Weighs a task by 1 / (1 + visits); its numbers of each task are saved and restored for it.

    It is pure: no files, no clock, no chance of its own.
    """

    columns: ClassVar = {"visits": 0.0}

    def weights(self) -> Numbers:
        """(n,) weight of each task of the pool, above 0."""
        return 1.0 / (1.0 + self.table["visits"])

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Count one visit of a task, whatever its episodes came to."""
        self.table["visits"][row] += 1.0


@method("newcurriculum", curriculum={"evolve": "off"})
def newcurriculum(kit: Kit) -> Method:
    """Tasks that were practised less come more often."""
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
