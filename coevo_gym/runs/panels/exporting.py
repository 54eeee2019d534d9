"""Functions that export panels as lists for other code, and add texts from the user's data.

A panel contains hashes in place of texts. Where the benchmark's data is installed, the texts can be
filled in; they are never part of a panel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum

from coevo_gym.core.benchmark import get_benchmark, panel_entry_of
from coevo_gym.core.errors import CoevoError, ConfigError
from coevo_gym.core.panel import Panel
from coevo_gym.runs.panels.panel_files import check_panel, tasks_of_panel


class ExportFormat(StrEnum):
    """Formats of task lists that other code bases read."""

    ALFWORLD = "alfworld"
    """One path of a game per line, below the data folder of ALFWorld's own code."""
    WEBSHOP = "webshop"
    """One position per line, in the order of the original's goals."""
    JSONL = "jsonl"
    """One JSON object per line, with the task's whole content."""


def export_panel(panel: Panel, form: ExportFormat) -> Iterator[str]:
    """Yield the lines of a task list for another code base, in the panel's order.

    Lists of paths and positions need no data. The format ``jsonl`` contains the texts of the
    installed data, after a check that they are those of the panel.

    Raises:
        BenchmarkNotInstalled: if the texts are not installed.
        ConfigError: if the panel cannot be written in this format, or the installed texts differ.
    """
    if form is ExportFormat.JSONL:
        yield from _with_content(panel)
        return
    key = "game" if form is ExportFormat.ALFWORLD else "goal"
    for task in panel.tasks:
        if panel.benchmark != form or key not in task.place:
            raise ConfigError(
                f"The panel {panel.name} cannot be written as a list for {form}: the entry of its "
                f"task {task.id} has no {key}. Use --for jsonl."
            )
    if form is ExportFormat.WEBSHOP:
        kinds = sorted({str(task.place.get("subset")) for task in panel.tasks})
        if len(kinds) > 1:
            raise ConfigError(
                f"The panel {panel.name} has goals of several kinds ({', '.join(kinds)}), whose "
                "positions are counted separately. Create one panel per kind: --where subset=KIND."
            )
    for task in panel.tasks:
        yield str(task.place[key])


def _with_content(panel: Panel) -> Iterator[str]:
    benchmark = get_benchmark(panel.benchmark)
    for entry, task in zip(panel.tasks, tasks_of_panel(panel, benchmark), strict=True):
        row = {
            "id": entry.id,
            "hash": entry.hash,
            "scenario": entry.scenario,
            "place": dict(entry.place),
            "content": dict(panel_entry_of(benchmark, task).parts),
        }
        yield json.dumps(row, ensure_ascii=False)


def find_instructions(panel: Panel) -> tuple[dict[str, str], str]:
    """Return the instructions of a panel's tasks by id, and why some are missing ("" if none are).

    An instruction is only returned if the task's content is that of the panel.
    """
    try:
        check = check_panel(panel)
    except CoevoError as error:
        return {}, str(error)
    changed = {difference.id for difference in check.differences}
    reason = f"{len(changed)} tasks differ in the installed data." if changed else ""
    names = check.places.items()
    return {
        id: check.candidates[place].instruction for id, place in names if id not in changed
    }, reason
