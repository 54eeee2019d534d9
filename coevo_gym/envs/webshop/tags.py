"""What a task is about: department and family of its product, and the options asked for."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import asks_nothing, tags_from
from coevo_gym.envs.webshop.builder import is_named
from coevo_gym.envs.webshop.tasks import open_catalogue
from coevo_gym.envs.webshop.world import WebShopWorld


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """``category:`` and ``family:`` (all products under the same search words), and an ``option:``
    for each of the product's options that the instruction names a value of.

    Raises:
        BenchmarkNotInstalled: if its shop is not at hand.
        DataError: if the shop at hand is not the one that the task was made with.
    """  # noqa: D205
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
