"""Functions that format Markdown and HTML tables, and the cells of CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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


_MAX_CELL = 200
_LEFT = ' style="text-align:left"'


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """Return an HTML table for a notebook, in the notebook's own colours.

    All texts are escaped, and those in cells are cut off after 200 characters. The first column is
    aligned to the left, the others as the notebook does it.

    Example:
        >>> html_table(["task"], [["<b>"]]).partition("<tbody>")[2]
        '<tr><td style="text-align:left">&lt;b&gt;</td></tr></tbody></table>'
    """
    caption = f"<p>{html_text(title)}</p>" if title else ""
    body = "".join(_html_row("td", row) for row in rows)
    return f"{caption}<table><thead>{_html_row('th', heads)}</thead><tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Return a text for an HTML page, with control characters replaced by their names."""
    return escape(make_visible(text))


def _html_row(kind: str, cells: Sequence[str]) -> str:
    inner = (
        f"<{kind}{'' if place else _LEFT}>{html_text(_shorten(cell))}</{kind}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(inner)}</tr>"


def _shorten(cell: str) -> str:
    return cell if len(cell) <= _MAX_CELL else f"{cell[: _MAX_CELL - 1]}…"


def _markdown_cell(cell: str) -> str:
    return " ".join(cell.replace("|", "/").splitlines())
