"""Functions that format Markdown tables and the cells of CSV files."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.spaces import make_visible


def csv_cell(value: object) -> object:
    """Make a value safe for a CSV file by escaping control characters and spreadsheet formulas."""
    if not isinstance(value, str):
        return value
    text = make_visible(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a ``|`` in a cell becomes ``/``."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)


def _markdown_cell(cell: str) -> str:
    return " ".join(cell.replace("|", "/").splitlines())
