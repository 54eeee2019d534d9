"""Learning, forgetting and overfitting of the policies in an experiment.

Reads the finished cells of a `coevo experiment` from `runs/` in the current directory, and trains
nothing. The first table has the means over each row's cells: training success in the first and last
fifth of the steps; success on the evaluation tasks after the warm-up and at the end, with the
shares of tasks that training won and lost; and success on tasks of the warm-up and of the pool, if
they were evaluated (`evaluation.n_trained`). The second table shows success by type of task, and
the worst change in a cell, in percentage points.

Run: python bench/forgetting.py rbc_alfworld --kind goal
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from coevo_gym.runs.evals.comparison import ComparedType, Comparison, compare
from coevo_gym.runs.evals.sides import find_sides
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.folder import RUNS, read_json, read_lines

TRIED = ("warmup_tasks_success", "pool_tasks_success")


class Cell(NamedTuple):
    """The results of one run.

    Attributes:
        row: name of the experiment's row.
        training: training success in the first and in the last fifth of the steps.
        judged: comparison of the arm with the warm-up on the evaluation tasks.
        tried: first and last success on tasks of the warm-up and of the pool; may be empty.
    """

    row: str
    training: tuple[float, float]
    judged: Comparison
    tried: dict[str, tuple[float, float]]


def group_by_row(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Group cells by the name of their row."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, []).append(cell)
    return rows


def read_cells(folder: Path) -> Iterator[Cell]:
    """Yield the finished cells in an experiment's folder."""
    for path in sorted(folder.glob("*-*/summary.json")):
        ((arm, its),) = read_json(path)["arms"].items()
        steps = [e["success"] for e in read_lines(path.parent / "metrics.jsonl") if _is_step(e)]
        fifth = max(len(steps) // 5, 1)
        yield Cell(
            row=path.parent.name.rpartition("-")[0],
            training=(fmean(steps[:fifth]), fmean(steps[-fifth:])),
            judged=compare(*find_sides(str(path.parent), None, (WARMUP, arm))),
            tried={
                name: (its["evaluations"][0][name], its["evaluations"][-1][name])
                for name in TRIED
                if name in its["evaluations"][0]
            },
        )


def _is_step(event: dict[str, object]) -> bool:
    return event["event"] == "step" and event.get("success") is not None


def format_overall(rows: dict[str, list[Cell]]) -> str:
    """Return the first table, with the change in success of each row."""
    tried = all(cell.tried for each in rows.values() for cell in each)
    names = ["row", "cells", "training: first, last fifth", "judged: warm-up, end"]
    names += ["won", "lost", *["tasks of the warm-up", "tasks of the pool"] * tried]
    lines = [names, ["---"] * len(names)]
    for row, each in rows.items():
        n = each[0].judged.tasks
        judged = [(cell.judged.success_a, cell.judged.success_b) for cell in each]
        cells_ = [
            row,
            str(len(each)),
            _format_means([c.training for c in each]),
            _format_means(judged),
        ]
        cells_ += [
            f"{100 * fmean(len(getattr(cell.judged, side)) for cell in each) / n:.1f} %"
            for side in ("won", "lost")
        ]
        if tried:
            cells_ += [_format_means([c.tried[name] for c in each]) for name in TRIED]
        lines.append(cells_)
    return _format_table(lines)


def format_by_type(rows: dict[str, list[Cell]], kind: str) -> str:
    """Return the second table, with success by type of task after the warm-up and at the end."""
    types = {
        one.value: one.tasks for c in next(iter(rows.values())) for one in _types_of_kind(c, kind)
    }
    if not types:
        raise SystemExit(f"None of the evaluation tasks has a tag of kind {kind!r}.")
    lines = [["row", *(f"{value} ({tasks})" for value, tasks in types.items())]]
    lines.append(["---"] * len(lines[0]))
    for row, each in rows.items():
        tables = [{one.value: one for one in _types_of_kind(cell, kind)} for cell in each]
        entries = []
        for value in types:
            there = [by_value[value] for by_value in tables]
            lost = 100 * fmean(one.lost / one.tasks for one in there)
            pairs = [(one.success_a, one.success_b) for one in there]
            worst = 100 * min(b - a for a, b in pairs)
            entries.append(f"{_format_means(pairs)}; lost {lost:.0f}; worst {worst:+.0f}")
        lines.append([row, *entries])
    return _format_table(lines)


def _types_of_kind(cell: Cell, kind: str) -> list[ComparedType]:
    return [one for one in cell.judged.types if one.kind == kind]


def _format_means(pairs: Sequence[tuple[float, float]]) -> str:
    first, last = (100 * fmean(values) for values in zip(*pairs, strict=True))
    return f"{first:.1f} → {last:.1f} %"


def _format_table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print both tables of an experiment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="name of the experiment's folder in runs/")
    parser.add_argument(
        "--kind", default="goal", help="kind of tag that defines the types of tasks"
    )
    arguments = parser.parse_args()
    rows = group_by_row(read_cells(RUNS / arguments.experiment))
    if not rows:
        raise SystemExit(f"{RUNS / arguments.experiment} contains no finished cell.")
    print(format_overall(rows))
    print()
    print(format_by_type(rows, arguments.kind))


if __name__ == "__main__":
    main()
