"""The recipes of the shipped panels.

``python -m coevo_gym.runs.panels.shipped FOLDER`` makes the panels again from the installed data
and writes them to a folder. The shipped files are in ``lists``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.panel import Panel
from coevo_gym.core.task import FrozenDict
from coevo_gym.runs.panels.making import make_panel


class PanelRecipe(NamedTuple):
    """Arguments that make a shipped panel; see :func:`make_panel`."""

    name: str
    about: str
    benchmark: str
    split: str
    env: Mapping[str, Any] = FrozenDict()
    where: Mapping[str, str] = FrozenDict()
    size: int | None = None

    def make(self) -> Panel:
        """Make the panel from the installed data.

        Raises:
            BenchmarkNotInstalled: if the data is not installed.
        """
        return make_panel(**self._asdict())


RECIPES = (
    PanelRecipe(
        "alfworld-valid-seen-140",
        "All 140 games of valid_seen, whose rooms also occur in training.",
        "alfworld",
        "val",
        {"subset": "valid_seen"},
    ),
    PanelRecipe(
        "alfworld-valid-seen-128",
        "128 of the 140 games of valid_seen: those with the smallest SHA-256 of '0 ID'.",
        "alfworld",
        "val",
        {"subset": "valid_seen"},
        size=128,
    ),
    PanelRecipe(
        "alfworld-valid-unseen-134",
        "All 134 games of valid_unseen, whose rooms do not occur in training.",
        "alfworld",
        "test",
        {"subset": "valid_unseen"},
    ),
    PanelRecipe(
        "webshop-official-500",
        "The original's 500 synthetic test goals, at positions 0 to 499 of its order.",
        "webshop",
        "test",
        {"subset": "official_test"},
        where={"subset": "synthetic"},
    ),
    PanelRecipe(
        "webshop-product-500",
        "500 synthetic goals for products of the test split, which no training or validation goal "
        "asks for: those with the smallest SHA-256 of '0 ID'.",
        "webshop",
        "test",
        {"subset": "synthetic"},
        size=500,
    ),
    PanelRecipe(
        "webshop-product-val-128",
        "128 synthetic goals for products of the validation split: those with the smallest SHA-256 "
        "of '0 ID'.",
        "webshop",
        "val",
        {"subset": "synthetic"},
        size=128,
    ),
    PanelRecipe(
        "bfcl-base-200",
        "All 200 entries of multi-turn base.",
        "bfcl",
        "test",
        {"scheme": "all200", "subset": "base"},
    ),
    PanelRecipe(
        "bfcl-all-800",
        "All 800 multi-turn entries: base, miss_func, miss_param and long_context.",
        "bfcl",
        "test",
        {"scheme": "all200"},
    ),
    PanelRecipe(
        "bfcl-agentevolver-100",
        "Entries 100 to 199 of multi-turn base, the validation set of AgentEvolver.",
        "bfcl",
        "val",
        {"scheme": "agentevolver", "subset": "base"},
    ),
    PanelRecipe(
        "bfcl-held-out-160",
        "The 40 test numbers of coevo_gym's own split, in all four categories.",
        "bfcl",
        "test",
    ),
)


def main() -> None:
    """Make the shipped panels, and write them to the folder named by the first argument."""
    folder = Path(sys.argv[1])
    for recipe in RECIPES:
        panel = recipe.make()
        (folder / f"{panel.name}.json").write_text(panel.to_json(), encoding="utf-8")
        print(panel.reference, len(panel.tasks))


if __name__ == "__main__":
    main()
