"""A method that prefers tasks with 50% success, in a pool that grows where the agent is weak.

``coevo train`` and ``coevo resume`` load it from the folder in a run's settings::

    [plugins]
    methods = "FOLDER"

Set ``arms = ["static", "newmethod"]`` to compare it with a fixed set of tasks. An arm may change
its settings: ``[arm.short] method = "newmethod", set = { "method.memory" = 0.2 }``.
``python newmethod.py`` checks that it keeps the method contract.
"""

from __future__ import annotations

from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.selectors.learnable import Learnable
from coevo_gym.methods.contract import assert_method_contract
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method


class NewmethodSettings(FrozenModel):
    """Settings for this method, which an arm can change as ``method.KEY``."""

    memory: float = Field(default=0.5, ge=0, le=1)
    """Factor applied to a task's earlier counts at each visit."""


@method("newmethod", curriculum={"growth": {"kind": "signals"}})
def newmethod(settings: NewmethodSettings, kit: Kit) -> Method:
    """Prefer tasks with 50% success, in a pool that grows where the agent is weak."""
    curriculum = kit.curriculum.make(
        kit.first_tasks, native=kit.starts, selector=Learnable(settings.memory)
    )
    return Method.of(kit, curriculum)


if __name__ == "__main__":
    assert_method_contract(newmethod)
    print("newmethod keeps the contract of a method.")
