"""Tags of a WebShop task: department and family of its product, and the requested options."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import asks_nothing, tags_from
from coevo_gym.envs.webshop.builder import is_named
from coevo_gym.envs.webshop.tasks import open_catalogue
from coevo_gym.envs.webshop.world import WebShopWorld


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return the tags ``category:``, ``family:`` and ``option:`` of a task or a draft.

    A family consists of all products under the same search words. There is one ``option:`` tag per
    product option of which the instruction names a value.

    Raises:
        BenchmarkNotInstalled: if the task's shop is not installed.
        DataError: if the installed shop is not the one that the task was made with.
    """
    assert isinstance(task.world, WebShopWorld)
    catalogue = open_catalogue(task.world)
    if task.scenario not in catalogue:
        return ()
    product = catalogue[task.scenario]
    pairs = [("category", product.category), ("family", product.query)]
    if not asks_nothing(task):
        said = task.instruction.lower()
        pairs += [
            ("option", name)
            for name, values in product.options
            if any(is_named(said, value) for value in values)
        ]
    return tags_from(pairs)
