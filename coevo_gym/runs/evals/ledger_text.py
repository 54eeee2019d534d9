"""Functions that render a ledger as Markdown, CSV, HTML or the cells of a terminal table."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coevo_gym.core.spaces import make_visible
from coevo_gym.core.text_tables import csv_cell, markdown_table
from coevo_gym.runs.evals.ledger import Ledger, LedgerRow, PeerRow
from coevo_gym.runs.panels.known import KnownNumber

HEADS = (
    "policy",
    "notes",
    "tasks",
    "repeats",
    "success, % [over tasks]",
    "[over repeats]",
    "points from row 1 [over tasks]",
    "[over repeats] ",
    "source",
)
PEER_TITLE = "Read as verl-agent's evaluations"
PEER_HEADS = (
    "policy",
    "tasks per evaluation",
    "evaluations",
    "last on the panel, %",
    "best on the panel, %",
    "last redrawn, % ± sd",
    "best redrawn, %",
    "rise, points",
)
PUBLISHED = (0, 1, 2, 4, 8)
"""Indices of the columns that published numbers have."""
_GREY = "color:gray"


class LedgerGrid(NamedTuple):
    """The printed cells of a ledger.

    Attributes:
        rows: cells of each row, in the order of :data:`HEADS`.
        published: cells of each published number.
        notes: the notes that the second cells refer to by number, from 1.
    """

    rows: list[list[str]]
    published: list[list[str]]
    notes: list[str]


def grid(ledger: Ledger) -> LedgerGrid:
    """Return the cells and notes of a ledger."""
    notes: dict[str, int] = {}

    def number_notes(texts: Iterable[str]) -> str:
        return ", ".join(str(notes.setdefault(text, len(notes) + 1)) for text in texts)

    rows = [[row.label, number_notes(row.notes), *_row_cells(row)] for row in ledger.rows]
    published = [
        [_known_label(one), number_notes(one.caveats), *_known_cells(one)] for one in ledger.known
    ]
    return LedgerGrid(rows, published, list(notes))


def peer_cells(row: PeerRow) -> list[str]:
    """Return the cells of a row in the order of :data:`PEER_HEADS`."""
    one = row.mean
    return [
        row.label,
        str(one.tasks),
        str(one.evaluations),
        f"{100 * one.panel_last:.1f}",
        f"{100 * one.panel_best:.1f}",
        f"{100 * one.last:.1f} ± {100 * one.last_sd:.1f}",
        f"{100 * one.best:.1f}",
        f"{100 * one.rise:+.1f}",
    ]


def title(ledger: Ledger) -> str:
    """Return the first line of a ledger."""
    if ledger.panel:
        return f"{ledger.benchmark}, {ledger.split} tasks of the panel {ledger.panel}"
    return f"{ledger.benchmark}, {ledger.split} tasks, no panel"


def explanations(ledger: Ledger) -> Iterator[str]:
    """Yield the sentences below a ledger, apart from its notes."""
    yield (
        "Brackets are 95 % intervals: over tasks, how far other tasks like these would move the "
        "number; over repeats, how far other seeds would."
    )
    if ledger.known:
        yield (
            "Grey rows are published numbers, with the tasks that their sources name. No mean "
            "includes them. docs/known-numbers.md says how they were measured."
        )
    yield from ledger.remarks


def as_markdown(ledger: Ledger) -> str:
    """Return a ledger as Markdown."""
    rows, published, notes = grid(ledger)
    grey = [
        [f'<span style="{_GREY}">{cell}</span>' if cell else "" for cell in cells]
        for cells in published
    ]
    parts = [
        f"**{title(ledger)}**",
        markdown_table(HEADS, [*rows, *grey]),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        *(
            [f"**{PEER_TITLE}**", markdown_table(PEER_HEADS, [*map(peer_cells, ledger.peer)])]
            if ledger.peer
            else []
        ),
        *explanations(ledger),
    ]
    return make_visible("\n\n".join(part for part in parts if part)) + "\n"


def as_html(ledger: Ledger) -> str:
    """Return a ledger as an HTML page without scripts or links."""
    rows, published, notes = grid(ledger)

    def table_row(cells: list[str], kind: str = "td", css: str = "") -> str:
        inner = "".join(f"<{kind}>{_escape(cell)}</{kind}>" for cell in cells)
        return f"<tr{css}>{inner}</tr>"

    head = _escape(title(ledger))
    body = [
        *(table_row(cells) for cells in rows),
        *(table_row(cells, css=' class="published"') for cells in published),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{head}</title>",
            "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
            "th,td{padding:.3em .6em;border-bottom:1px solid #ddd;text-align:left;"
            "vertical-align:top}td:nth-child(n+4):not(:last-child){white-space:nowrap}"
            f".published{{{_GREY}}}</style></head><body>",
            f"<h1>{head}</h1>",
            f"<table><thead>{table_row(list(HEADS), 'th')}</thead><tbody>",
            *body,
            "</tbody></table>",
            *(["<ol>", *(f"<li>{_escape(note)}</li>" for note in notes), "</ol>"] if notes else []),
            *(
                [
                    f"<h2>{_escape(PEER_TITLE)}</h2>",
                    f"<table><thead>{table_row(list(PEER_HEADS), 'th')}</thead><tbody>",
                    *(table_row(peer_cells(row)) for row in ledger.peer),
                    "</tbody></table>",
                ]
                if ledger.peer
                else []
            ),
            *(f"<p>{_escape(text)}</p>" for text in explanations(ledger)),
            "</body></html>",
            "",
        ]
    )


_CSV_HEADS = (
    *("kind", "policy", "split", "tasks", "repeats", "success", "low", "high"),
    *("repeat_sd", "repeat_low", "repeat_high", "difference", "difference_low", "difference_high"),
    *("difference_repeat_low", "difference_repeat_high", "published_sd", "source", "notes"),
)
_CSV_PEER_HEADS = ("evaluations", "panel_last", "panel_best", "last", "last_sd", "best", "rise")


def as_csv(ledger: Ledger) -> str:
    """Return a ledger as CSV, with rates in [0, 1].

    ``kind`` is ``measured``, ``verl-agent`` or ``published``. Rows of the kind ``verl-agent`` have
    columns of their own at the end, which only exist if there are such rows.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = (*_CSV_HEADS, *(_CSV_PEER_HEADS if ledger.peer else ()))

    def write(cells: Sequence[object]) -> None:
        writer.writerow(map(csv_cell, (*cells, *(None,) * (len(heads) - len(cells)))))

    write(heads)
    for row in ledger.rows:
        change = row.difference
        cells = [
            *("measured", row.label, ledger.split, row.tasks, len(row.means), row.success),
            *(row.low, row.high, row.repeat_sd, row.repeat_low, row.repeat_high),
            *((change.mean, change.low, change.high) if change else (None,) * 3),
            *((change.repeat_low, change.repeat_high) if change else (None,) * 2),
            *(None, "; ".join(row.results), " ".join(row.notes)),
        ]
        write(cells)
    for peer in ledger.peer:
        size, *numbers = peer.mean
        cells = ["verl-agent", peer.label, ledger.split, size, len(peer.repeats)]
        cells += [None] * (len(_CSV_HEADS) - len(cells)) + numbers
        write(cells)
    for one in ledger.known:
        sd = None if one.sd is None else round(one.sd / 100, 6)
        tasks = " or ".join(map(str, one.n_tasks))
        cells = [
            *("published", _known_label(one), one.split, tasks, None, round(one.value / 100, 6)),
            *(None,) * 10,
            *(sd, one.source, " ".join(one.caveats)),
        ]
        write(cells)
    return out.getvalue()


def _row_cells(row: LedgerRow) -> list[str]:
    change = row.difference
    return [
        str(row.tasks),
        str(len(row.means)),
        f"{100 * row.success:.1f} {_interval(row.low, row.high)}",
        _interval(row.repeat_low, row.repeat_high),
        f"{100 * change.mean:+.1f} {_interval(change.low, change.high, '+')}" if change else "",
        _interval(change.repeat_low, change.repeat_high, "+") if change else "",
        "; ".join(row.results),
    ]


def _known_cells(one: KnownNumber) -> list[str]:
    metric = "" if one.metric in ("success", "accuracy") else f" ({one.metric})"
    return [one.tasks, "", f"{one.printed}{metric}", "", "", "", one.source]


def _known_label(one: KnownNumber) -> str:
    return f"{one.method}, {one.model}"


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    if low is None or high is None:
        return ""
    return f"[{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def _escape(text: str) -> str:
    return html.escape(make_visible(text))
