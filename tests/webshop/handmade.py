"""A shop of a few hand-made products that cover the odd corners of the raw data."""

from __future__ import annotations

from typing import Any

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.webshop.engine.catalogue import Catalogue
from coevo_gym.envs.webshop.engine.goals import ShoppingGoal


def item(asin: str, name: str, **fields: Any) -> dict[str, Any]:
    """Make a raw item with sensible defaults."""
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "pricing": "$12.5",
        "images": ["none"],
        "product_category": "Home › Kitchen › Mugs",
        "small_description": ["holds half a litre"],
        "customization_options": "",
        "category": "kitchen",
        "query": "Mugs ",
        **fields,
    }


def choices(**options: list[str]) -> dict[str, list[dict[str, str]]]:
    """Spell options as raw items do."""
    return {name: [{"value": value} for value in values] for name, values in options.items()}


ITEMS = [
    item(
        "M000000001",
        "Stoneware mug",
        full_description="A <b>heavy</b> mug & saucer.",
        small_description=["fits 6.5 inch shelves", "", "dishwasher safe"],
        customization_options=choices(Color=["Light Blue", "red/white"], Size=["Small", "Large"]),
    ),
    item("M000000002", "Travel mug", pricing="$8.0$19.0", small_description=""),
    item("M000000003", "Travel mug", pricing=""),
    item(
        "M000000004",
        "Mug with odd options",
        customization_options=choices(style=["Reviews", "large", "", "Attributes"], cup=["large"]),
    ),
    item("L000000001", "Desk lamp", category="office", product_category="Office › Lamps"),
    item("M000000001", "A repeated asin"),
    item("nan", "No asin"),
    item("M00000000099", "An asin too long"),
]
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "M000000001": {
        "attributes": ["dishwasher safe", "heavy duty"],
        "instruction": "Find me heavy duty mugs",
        "instruction_attributes": ["heavy duty"],
    },
    "M000000002": {"attributes": []},
}
HUMAN = {
    "M000000002": [
        {
            "instruction": "i need a mug for the train.",
            "instruction_attributes": ["leak proof"],
            "instruction_options": ["blue"],
        },
        {"instruction": "skipped", "instruction_attributes": [], "instruction_options": []},
    ]
}


def catalogue(name: str = "handmade", seed: int = 0) -> Catalogue:
    """Build the shop."""
    return Catalogue.from_items(name, ITEMS, ATTRIBUTES, human=HUMAN, seed=seed)


def goal(shop: Catalogue, **fields: Any) -> ShoppingGoal:
    """Ask for the stoneware mug."""
    defaults: dict[str, Any] = {
        "instruction": "Find me a heavy duty light blue mug",
        "attributes": ["heavy duty"],
        "options": {"color": "light blue", "size": "large"},
        "price_cap": 20.0,
    }
    fields = {**defaults, **fields}
    fields["options"] = tuple(dict(fields["options"]).items())
    fields["attributes"] = tuple(fields["attributes"])
    return ShoppingGoal(shop["M000000001"], **fields)


def draft_of(task: Task, **changes: object) -> Draft:
    """The draft that a task could have been built from, with other fields if wanted."""
    fields = {
        "benchmark": "webshop",
        "scenario": task.scenario,
        "instruction": task.instruction,
        "world": task.world,
        "solution": task.solution,
    }
    return Draft(**(fields | changes))  # type: ignore[arg-type]
