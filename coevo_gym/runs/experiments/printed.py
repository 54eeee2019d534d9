"""Numbers of a paper, printed beside the rows that have the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coevo_gym.core.task import FrozenDict
from coevo_gym.methods.published import differences
from coevo_gym.runs.config import arm_configs
from coevo_gym.runs.experiments.cells import Cell
from coevo_gym.runs.experiments.definition import Experiment, Row, Size
from coevo_gym.runs.plan import settings_of

Printed = Mapping[str, Mapping[str, float]]
"""Numbers printed in a paper, in its own units, by row key and name."""
NOTHING: Printed = FrozenDict()
_BEFORE_TRAINING = ("benchmark.", "policy.", "evaluation.", "warmup.")
_OF_TRAINING = ("policy.model.lora_rank", "policy.chat.temperature")


def printed_beside(
    experiment: Experiment,
    rows: Sequence[Row],
    cells: Sequence[Cell],
    benchmark: str,
    budget: Size,
) -> tuple[Printed, list[str]]:
    """Return the paper's numbers beside rows, and notes about rows whose settings differ.

    Args:
        experiment: the table.
        rows: rows of the table.
        cells: cells of the rows that have runs.
        benchmark: name of the benchmark.
        budget: budget per cell.
    """
    shown: dict[str, Mapping[str, float]] = {}
    differing: dict[str, list[str]] = {}
    for row in rows:
        numbers = row.published(benchmark, experiment.metric)
        if not numbers or _is_another(experiment, row, budget):
            continue
        differ = _differences(experiment, row, cells, benchmark, budget)
        if not differ:
            shown[row.key] = numbers
        elif budget == "paper":
            listed = "; ".join(f"{key}: {values}" for key, values in differ.items())
            differing.setdefault(listed, []).append(row.printed(budget))
    return shown, [
        f"The paper's numbers are not shown beside {', '.join(labels)}: settings differ ({listed})."
        for listed, labels in differing.items()
    ]


def _is_another(experiment: Experiment, row: Row, budget: Size) -> bool:
    """Return True if the row at this budget is not the paper's row."""
    if row.shows == "printed":
        return budget != "paper"
    return not experiment.follows and budget in row.at and bool(row.at[budget].set)


def _differences(
    experiment: Experiment, row: Row, cells: Sequence[Cell], benchmark: str, budget: Size
) -> dict[str, str]:
    """Return the settings that differ from the paper's, except those that the table varies."""
    if not experiment.follows or row.shows == "printed":
        return {}
    source = experiment.source_of(row)
    cell = next((cell for cell in cells if cell.row.name == source), None)
    if cell is None:
        return {}
    settings = settings_of(cell.config, arm_configs(cell.config)[source])
    found = differences(benchmark, settings, experiment.follows)
    about = cell.row.keys_at(budget) | experiment.keys
    return {
        key: values
        for key, values in found.items()
        if key not in about
        and (not row.shows or (key.startswith(_BEFORE_TRAINING) and key not in _OF_TRAINING))
    }
