"""Figures for papers: curves over training with bands over seeds, and a table's results by row.

Every program draws them alike: colours are plain, text in an SVG file is drawn as outlines, and a
PDF file embeds its fonts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.spaces import make_visible
from coevo_gym.provision import explain_missing
from coevo_gym.runs.experiments.results import ResultTable
from coevo_gym.runs.experiments.table_parts import CURVES
from coevo_gym.store.folder import write_atomic
from coevo_gym.view.export.curve import COLOURS, DASHES
from coevo_gym.view.model.curves import (
    ENV_STEPS,
    SUCCESS,
    Axis,
    MeanCurve,
    axis_of,
    curves_in_table,
)
from coevo_gym.view.numbers import NARROW, format_compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = (".pdf", ".svg", ".png")
"""File name extensions of figures."""
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LONGEST = 44
"""Maximum number of characters of a label."""
_ROW_IN = 0.26
"""Height of a row of results, in inches."""
_LEGEND_ROW_IN = 0.16
"""Height of a row of the legend, in inches."""
_DPI = 300
_STYLE: Mapping[str, Any] = {
    "axes.edgecolor": "#59636e",
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": _DPI,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8,
    "grid.color": "#d5dae0",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.scale_dashes": False,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for; the default is Type 3
    "savefig.dpi": _DPI,
    "svg.fonttype": "path",
    "svg.hashsalt": "coevo_gym",
    "text.parse_math": False,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}
_METADATA: Mapping[str, Mapping[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}
"""Metadata without times, so that the same data gives the same bytes."""


FigureSize = Literal["column", "page"]
"""Widths of figures: a column of a page with two columns, or a whole page."""
_SIZES_IN: Mapping[FigureSize, tuple[float, float]] = {"column": (3.25, 2.4), "page": (6.75, 3.0)}
"""Width and height of curves in inches."""


@dataclass(frozen=True)
class CurveChart:
    """A chart of curves over training.

    Attributes:
        x: horizontal axis.
        y: vertical axis.
        curves: the curves; those with several seeds have a band.
        levels: baselines without a curve, such as the policy before training, by label.
    """

    x: Axis
    y: Axis
    curves: Sequence[MeanCurve]
    levels: Mapping[str, float]


class RowResult(NamedTuple):
    """The results of a row of a table.

    Attributes:
        label: label of the row.
        values: result of each seed.
        mean: mean over the seeds.
        sd: sample standard deviation over the seeds; None for a single seed.
    """

    label: str
    values: Sequence[float]
    mean: float
    sd: float | None


@dataclass(frozen=True)
class RowChart:
    """A chart of a table's results by row.

    Attributes:
        x: horizontal axis.
        rows: the rows that have results.
    """

    x: Axis
    rows: Sequence[RowResult]


class _Look(NamedTuple):
    """The colour of a line or a row, its dashes in points, and its marker."""

    colour: str
    dash: str | tuple[float, tuple[float, ...]]
    marker: str


def check_figure_target(path: Path) -> None:
    """Check that a figure can be drawn and written, before the work that it needs.

    Raises:
        ConfigError: if the format is unknown, or the file cannot be in this place.
        ImportError: if matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"The format of {path} is unknown. Figures are written as {', '.join(FORMATS)}: use "
            f"{path.with_suffix('.pdf').name or 'figure.pdf'}."
        )
    with explain_missing("Figures need matplotlib.", "plot"):
        import matplotlib.figure  # noqa: F401


def table_chart(table: ResultTable) -> CurveChart | RowChart:
    """Return a table's chart: the curves that it contains, or else its metric by row.

    A table contains curves if it has the measure ``curve`` and compares rows by success.

    Raises:
        ConfigError: if the table has no results.
    """
    rows = {
        line.key: RowResult(line.label, list(line.values.values()), line.mean, line.sd)
        for line in table.lines
        if line.mean is not None
    }
    if not rows:
        raise ConfigError(
            f"The table {table.experiment} has no finished cells, so there is nothing to plot."
        )
    stored = table.parts.get(CURVES, ()) if table.metric == SUCCESS else ()
    if not stored:
        return RowChart(axis_of(table.metric), list(rows.values()))
    curves = curves_in_table(stored, {key: row.label for key, row in rows.items()})
    with_curves = {one["row"] for one in stored}
    levels = {row.label: row.mean for key, row in rows.items() if key not in with_curves}
    return CurveChart(axis_of(ENV_STEPS), axis_of(SUCCESS), curves, levels)


def write_figure(chart: CurveChart | RowChart, path: Path, size: FigureSize) -> None:
    """Draw a chart and write it to a file, replacing an earlier one. The name sets the format.

    Raises:
        ConfigError: see :func:`check_figure_target`.
        ImportError: if matplotlib is missing.
        StoreError: if the file cannot be written.
    """
    check_figure_target(path)
    from matplotlib import rc_context, rcdefaults, rcParams

    kind, data = path.suffix.lower()[1:], io.BytesIO()
    with rc_context():
        rcdefaults()  # the user's settings of matplotlib do not change a figure
        rcParams.update(dict[Any, Any](_STYLE))
        if isinstance(chart, CurveChart):
            figure = _draw_curves(chart, size)
        else:
            figure = _draw_rows(chart, size)
        figure.savefig(data, format=kind, metadata=dict(_METADATA[kind]))
    write_atomic(path, data.getvalue())


def _draw_curves(chart: CurveChart, size: FigureSize) -> Figure:
    figure, axes = _make_axes(size, _SIZES_IN[size][1])
    handles: list[Line2D] = []
    labels: list[str] = []
    for style, curve in enumerate(chart.curves):
        look, width = _look(style), 1.4
        if curve.low and len(curve.x) > 1:
            axes.fill_between(
                curve.x, curve.low, curve.high, color=look.colour, alpha=0.16, linewidth=0
            )
        elif curve.low:
            axes.vlines(curve.x, curve.low, curve.high, color=look.colour, linewidth=width)
        # The marker shows where a line ends, even if it ends in a gap between two dashes.
        handles += axes.plot(
            curve.x, curve.mean, color=look.colour, linestyle=look.dash, linewidth=width,
            marker=look.marker, markersize=4, markevery=[len(curve.x) - 1],
        )  # fmt: skip
        labels.append(curve.label)
    for style, (label, level) in enumerate(chart.levels.items(), start=len(chart.curves)):
        look = _look(style)
        handles.append(axes.axhline(level, color=look.colour, linestyle=look.dash, linewidth=1.0))
        labels.append(label)
    _label_axis(axes.xaxis, chart.x, axes.set_xlabel)
    _label_axis(axes.yaxis, chart.y, axes.set_ylabel)
    if chart.y.share:
        low, high = axes.get_ylim()
        axes.set_ylim(max(0.0, low), min(1.0, high))
    axes.grid(axis="y")
    names = [_shorten(label) for label in labels]
    rows = _add_legend(figure, handles, names)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_IN * max(0, rows - 2))
    return figure


def _add_legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str]) -> int:
    """Add a legend with as few rows as fit above the chart, and return the number of rows."""
    for rows in range(1, len(names) + 1):
        columns = math.ceil(len(names) / rows)
        legend = figure.legend(
            handles, names, loc="outside upper left", ncols=columns, handlelength=2.6,
            handletextpad=0.5, columnspacing=1.0, borderaxespad=0.2,
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return rows
        legend.remove()
    raise AssertionError("a chart has at least one line")


def _draw_rows(chart: RowChart, size: FigureSize) -> Figure:
    figure, axes = _make_axes(size, 0.55 + _ROW_IN * len(chart.rows))
    for y, row in enumerate(chart.rows):
        look = _look(y)
        if len(row.values) > 1:
            axes.plot(
                row.values, [y + _SHIFT] * len(row.values), color=look.colour, linestyle="",
                alpha=0.5, marker=look.marker, markersize=3, markeredgewidth=0,
            )  # fmt: skip
        axes.errorbar(
            [row.mean], [y - _SHIFT], xerr=None if row.sd is None else [row.sd], color=look.colour,
            marker=look.marker, markersize=5, linewidth=1.2, capsize=2,
        )  # fmt: skip
    axes.set_yticks(range(len(chart.rows)), [_shorten(row.label) for row in chart.rows])
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _label_axis(axes.xaxis, chart.x, axes.set_xlabel)
    axes.grid(axis="x")
    return figure


_SHIFT = 0.16
"""Distance of the mean and of the seeds from the middle of a row, so that both can be seen."""


def _make_axes(size: FigureSize, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_SIZES_IN[size][0], height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def _look(style: int) -> _Look:
    """Return the look of the line or row with this number, as in the viewer.

    The first six differ in all parts; later ones repeat the colours with other dashes and markers.
    """
    turn = (style + style // 6) % 6
    lengths = tuple(float(part) / 2 for part in DASHES[turn].split())
    return _Look(COLOURS[style % 6], (0.0, lengths) if lengths else "-", _MARKERS[turn])


def _label_axis(axis: Any, about: Axis, label: Callable[[str], object]) -> None:
    label(about.label[:1].upper() + about.label[1:])
    form = _format_share if about.share else format_compact
    axis.set_major_formatter(lambda value, _: form(float(f"{value:.10g}")))


def _format_share(value: float) -> str:
    return f"{100 * value:.4g}{NARROW}%"


def _shorten(label: str) -> str:
    """Return a label on one line, without invisible characters."""
    flat = " ".join(make_visible(label).split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1].rstrip()}…"
