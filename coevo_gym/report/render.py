"""Rendering of a run's data as a self-contained HTML file or as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from coevo_gym.report import words
from coevo_gym.report.bars import whisker, whisker_axis
from coevo_gym.report.charts import draw_lines
from coevo_gym.report.data import EvolutionRow, LineageRow, PracticeRow, ReportData, RoundRow
from coevo_gym.report.figures import (
    STEPS_LABEL,
    Figure,
    arm_styles,
    focus_arm,
    gates_figure,
    pool_figure,
    pool_panel,
    shown_kinds,
    signals_figure,
    similarity_figure,
    success_chart,
    success_figure,
    training_figure,
    warmup_figure,
)
from coevo_gym.report.label_figures import (
    MAX_LINES,
    label_figures,
    label_rows,
    shown_versions,
)
from coevo_gym.report.svg import MAX_TEXT, clean, shorten
from coevo_gym.report.task_figures import lengths_figure, map_figure, spread_figure
from coevo_gym.run.table import final_columns

PAGE = 50
"""Evolved tasks per page of the list, if that gives at most :data:`MAX_PAGES` pages."""

MAX_PAGES = 40
"""Maximum number of pages of the list."""

MAX_LINEAGE = 8_000_000
"""Maximum characters of listed evolved tasks. If there are more, an even sample is listed."""

MAX_REJECTED = 30
"""Maximum number of listed rejected drafts."""

MAX_ACTIONS = 30
"""Maximum number of listed actions per draft."""

MAX_SETTINGS = 300
"""Maximum number of listed lines per manifest section."""

PICTURE_WIDTH = 820


_MOST_COLUMNS = 4

Measures = Sequence[tuple[str, str, Callable[[float], str]]]
"""Label, attribute and formatter of each line of a table."""

_PRACTICE: Measures = (
    ("groups", "groups", words.count),
    ("mixed groups", "mixed", words.percent),
    ("mixed, last 64", "mixed_recent", words.percent),
    ("steps of mixed groups", "mixed_share", words.percent),
    ("steps, all failed", "fail_share", words.percent),
    ("steps, all passed", "pass_share", words.percent),
    ("reserve", "reserve", words.count),
    ("tags covered", "tags", words.count),
)
_EVOLUTION: Measures = (
    ("signals", "signals", words.count),
    ("contexts", "contexts", words.count),
    ("drafts", "drafts", words.count),
    ("accepted", "accepted", words.count),
    ("pass rate", "pass_rate", words.percent),
    ("drafts a context", "per_context", words.hundredths),
    ("tasks a signal", "per_signal", words.hundredths),
    ("SR@5 of D_0", "likeness_before", words.hundredths),
    ("SR@5 of pool", "likeness_after", words.hundredths),
    ("ED_rel", "distance", words.percent),
    ("time in rounds", "time_share", words.percent),
    ("steps exploring", "explore_share", words.percent),
    ("steps of gates", "gate_share", words.percent),
)


class Choice(NamedTuple):
    """A filter of the lineage: a class of rows, its label, and its number of rows."""

    css: str
    label: str
    n: int


class Origin(NamedTuple):
    """An evolved task with its kind, the kind's label, and the classes for filters."""

    row: LineageRow
    kind: str
    label: str
    css: str


@dataclass(frozen=True)
class Lineage:
    """Evolved tasks as listed in the report.

    Attributes:
        pages: listed tasks by page; all pages except the last have the same size.
        n_shown: number of listed tasks.
        total: number of all evolved tasks.
        kinds: filters by signal.
        arms: filters by arm.
    """

    pages: tuple[tuple[Origin, ...], ...]
    n_shown: int
    total: int
    kinds: tuple[Choice, ...]
    arms: tuple[Choice, ...]


def render_report(data: ReportData) -> str:
    """Render the report of a run.

    Args:
        data: the data of the report. Texts may be hostile: they are escaped, stripped of control
            characters and cut to a maximum length.

    Returns:
        A complete HTML document. The same data gives the same bytes.

    Example:
        >>> from coevo_gym.report.data import ReportData
        >>> render_report(ReportData(title="A first run")).splitlines()[0]
        '<!doctype html>'
    """
    styles = arm_styles(data)
    template = _environment().get_template("report.html")
    return template.render(
        data=data,
        words=words,
        focus=focus_arm(data),
        styles=styles,
        whiskers=[whisker(r.success, r.low, r.high, styles.get(r.name)) for r in data.table],
        axis=whisker_axis(),
        final=_scored(data),
        figures=_figures(data),
        curve_arms=[curve for curve in data.curves if curve.points],
        round_arms=_by_arm(data.rounds),
        practice=_tables(data.practice, "practice", _PRACTICE),
        measures=_tables(data.evolution, "rounds after D_0", _EVOLUTION),
        label_figures=label_figures(data),
        label_rows=label_rows(data),
        versions=shown_versions(data),
        max_lines=MAX_LINES,
        lineage=_lineage(data, styles),
        rejected=data.rejected[:MAX_REJECTED],
        settings=_settings(data),
        max_actions=MAX_ACTIONS,
        kinds=shown_kinds(data),
    )


def render_picture(data: ReportData) -> str:
    """Render success and pool size over env steps as a standalone SVG file.

    The picture has its own background, with colours for light and dark mode, so that it is readable
    on any page.

    Args:
        data: the data of a report; curves, rounds and table are used.

    Returns:
        An SVG document. The same data gives the same bytes.
    """
    success = success_chart(data, "picture", 230)
    panels = success.panels
    if data.rounds:
        panels += (pool_panel(data, 100),)
    title = f"{success.title}, and pool size" if data.rounds else success.title
    inner = PICTURE_WIDTH - 48
    chart = replace(success, panels=panels, title=title, x_label=STEPS_LABEL)
    drawn = draw_lines(chart, inner) if not chart.empty else None
    height = float(dict(drawn.attributes)["height"]) if drawn else 40.0
    return (
        _environment()
        .get_template("picture.svg")
        .render(
            title=shorten(data.title, inner, 17),
            lines=_wrap(words.headline(data.table), inner - 90) if data.table else [],
            chart=drawn,
            width=PICTURE_WIDTH,
            inner=inner,
            chart_height=height,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("coevo_gym.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["brief"] = words.brief
    return environment


def _finalize(value: object) -> object:
    """Clean all texts inserted into a page; markup and numbers are unchanged."""
    return clean(value) if type(value) is str else value


def _figures(data: ReportData) -> dict[str, Figure | None]:
    return {
        "success": success_figure(data),
        "training": training_figure(data),
        "lengths": lengths_figure(data),
        "pool": pool_figure(data),
        "map": map_figure(data),
        "spread": spread_figure(data),
        "signals": signals_figure(data),
        "similarity": similarity_figure(data),
        "gates": gates_figure(data),
        "warmup": warmup_figure(data),
    }


def _by_arm(rounds: Sequence[RoundRow]) -> dict[str, list[RoundRow]]:
    grouped: dict[str, list[RoundRow]] = {}
    for row in rounds:
        grouped.setdefault(row.arm, []).append(row)
    return grouped


def _tables(
    rows: Sequence[PracticeRow | EvolutionRow], title: str, measures: Measures
) -> list[list[tuple[str, list[str]]]]:
    """Return tables with one line per measure and one column per arm, a few columns each."""
    tables = []
    for at in range(0, len(rows), _MOST_COLUMNS):
        few = rows[at : at + _MOST_COLUMNS]
        lines = [(name, [say(getattr(row, key)) for row in few]) for name, key, say in measures]
        tables.append([(title, [words.brief(row.arm) for row in few]), *lines])
    return tables


def _scored(data: ReportData) -> list[list[tuple[str, list[str]]]]:
    """Return tables of final scores, with one line per task set and one column per policy."""
    columns, policies, tables = final_columns(data.final), list(data.final), []
    for at in range(0, len(policies), _MOST_COLUMNS):
        few = policies[at : at + _MOST_COLUMNS]
        lines = [
            (words.brief(head), [words.percent(rates.get(name)) for name in few])
            for head, rates in columns.items()
        ]
        tables.append([("final tasks", [words.brief(name) for name in few]), *lines])
    return tables


def _lineage(data: ReportData, styles: dict[str, int]) -> Lineage:
    rows = _bounded(data.lineage)
    labels = {kind.name: kind.label for kind in shown_kinds(data)}
    shown = []
    for row in rows:
        kind = row.signal if row.signal in labels else "other"
        shown.append(Origin(row, kind, labels.get(kind, kind), f"is-{kind} arm-{styles[row.arm]}"))
    filters = [
        (f"is-{kind}", labels.get(kind, kind), sum(o.kind == kind for o in shown))
        for kind in dict.fromkeys((*labels, "other"))
    ]
    arms = [
        (
            f"arm-{styles[arm]}",
            words.brief(arm, 30) or "no arm",
            sum(o.row.arm == arm for o in shown),
        )
        for arm in dict.fromkeys(o.row.arm for o in shown)
    ]
    size = PAGE * max(1, -(-len(shown) // (PAGE * MAX_PAGES)))
    return Lineage(
        tuple(tuple(shown[at : at + size]) for at in range(0, len(shown), size)),
        len(shown),
        len(data.lineage),
        tuple(Choice(*item) for item in filters if item[2]),
        tuple(Choice(*item) for item in arms),
    )


def _bounded(rows: Sequence[LineageRow]) -> list[LineageRow]:
    """Return all rows, or an even sample if their texts exceed the limit."""
    size = sum(_size(row) for row in rows)
    most = len(rows) if size <= MAX_LINEAGE else max(2, len(rows) * MAX_LINEAGE // size)
    return [rows[i] for i in words.spread(len(rows), most)]


def _size(row: LineageRow) -> int:
    """Return the number of characters in a row, with texts cut as on the page."""
    texts = (row.instruction, row.instruction, row.parent_instruction, row.context, row.verdict)
    return sum(min(len(text), MAX_TEXT) for text in (*texts, *row.actions[:MAX_ACTIONS]))


def _settings(data: ReportData) -> list[tuple[str, list[tuple[str, str]], int]]:
    """Return manifest sections as (name, lines, omitted lines), plain values first, unnamed."""
    plain: list[tuple[str, str]] = []
    sections: list[tuple[str, list[tuple[str, str]], int]] = []
    for name, value in data.manifest.items():
        lines = list(words.flatten(value))
        if len(lines) == 1 and not lines[0][0]:
            plain.append((name, lines[0][1]))
        else:
            left = max(0, len(lines) - MAX_SETTINGS)
            sections.append((name, lines[:MAX_SETTINGS], left))
    return [("", plain, 0), *sections] if plain else sections


def _wrap(text: str, width: float, size: float = 13) -> list[str]:
    """Break a text into at most three lines that fit; the last one is cut."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(longer) * 0.52 * size > width and len(lines) < 3:
            lines.append(word)
        else:
            lines[-1] = longer
    return [shorten(line, width + 80, size) for line in lines]
