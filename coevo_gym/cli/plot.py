"""``coevo plot``: draw what runs have logged over training, as a figure for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coevo_gym.cli.output import AsJson, print_json, require_writable, say, say_block, say_to_stderr
from coevo_gym.cli.sources import make_completer, run_names
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.store.folder import RunFolder

if TYPE_CHECKING:
    from coevo_gym.view.collection import ShownRun
    from coevo_gym.view.model.curves import MeanCurve


class PlotSize(StrEnum):
    """Widths of a figure."""

    COLUMN = "column"
    PAGE = "page"


class BandKind(StrEnum):
    """Kinds of bands around the mean over seeds."""

    SD = "sd"
    INTERVAL = "interval"


SIZE_HELP = "Width of the figure: a column (3.25 inches) or a page (6.75 inches)."


def plot(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Names or folders of runs on one benchmark, or of tables of `coevo experiment`.",
            autocompletion=make_completer(run_names),
        ),
    ],
    x: Annotated[
        str, typer.Option("--x", metavar="METRIC", help="Horizontal axis, such as step.")
    ] = "env_steps",
    y: Annotated[
        str,
        typer.Option(
            "--y", metavar="METRIC", help="Vertical axis; --list names the metrics of your runs."
        ),
    ] = "success",
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM[=LABEL]",
            help="Only draw this arm, with LABEL in the legend. Repeat for several, in order.",
        ),
    ] = None,
    band: Annotated[
        BandKind,
        typer.Option(
            help="Band around the mean over seeds: sd, the standard deviation on each side, or "
            "interval, the 95% interval of the mean."
        ),
    ] = BandKind.SD,
    size: Annotated[PlotSize, typer.Option("--size", help=SIZE_HELP)] = PlotSize.COLUMN,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File to write: .pdf, .svg or .png.", show_default="METRIC.pdf"
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the metrics that the runs store, then exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plot success, or any other logged metric, over training.

    Each line is an arm. Runs whose settings differ only in the seed share a line: their mean, with
    a band over the seeds. Lines differ in colour and in their dashes. Figures need the extra
    `plot`.

    For example:

      coevo plot quickstart

      coevo plot controls --size page --out controls.pdf

      coevo plot quickstart --x step --y curriculum.pool_size --out pool.svg

      coevo plot seed-1 seed-2 --arm static --arm coevolve="CoEvolve (ours)"

      coevo plot quickstart --list
    """
    from coevo_gym.view.figure import CurveChart, check_figure_target, write_figure
    from coevo_gym.view.model.curves import ENV_STEPS, SUCCESS, axis_of, mean_curves, metric_names
    from coevo_gym.view.refusals import Refusal

    target = out or Path(f"{y.rpartition('.')[2]}.pdf")
    arms = _parse_arms(arm or ())
    if listing:
        for option, is_given in (
            ("--x", x != ENV_STEPS),
            ("--y", y != SUCCESS),
            ("--arm", bool(arms)),
            ("--band", band is not BandKind.SD),
            ("--size", size is not PlotSize.COLUMN),
            ("--out", out is not None),
        ):
            if is_given:
                raise ConfigError(f"--list only lists metrics. Omit {option}, or omit --list.")
    else:
        require_writable(target)
        check_figure_target(target)
    try:
        all_runs = _find_runs(runs)
        if listing:
            _print_metrics(metric_names(all_runs), as_json)
            return
        curves = mean_curves(all_runs, x, y, arms=arms, band=band.value)
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal
    write_figure(CurveChart(axis_of(x), axis_of(y), curves, {}), target, size.value)
    if as_json:
        print_json({"file": str(target), "curves": [curve._asdict() for curve in curves]})
        return
    say(str(target))
    _say_seeds(curves, band)


def _parse_arms(options: Sequence[str]) -> dict[str, str]:
    """Return the labels of ``--arm``, keyed by arm; "" for an arm without a label.

    Raises:
        ConfigError: if an arm is named twice, or a label is empty.
    """
    arms: dict[str, str] = {}
    for option in options:
        name, equals, label = option.partition("=")
        if name in arms:
            raise ConfigError(f"--arm {name} was passed twice. A line has one label.")
        if equals and not label.strip():
            raise ConfigError(f"--arm {option} has an empty label. Add one, or omit the =.")
        arms[name] = label
    return arms


def _find_runs(names: Sequence[str]) -> list[ShownRun]:
    """Return the runs with these names, and the finished ones of tables with these names.

    Raises:
        ConfigError: if there is no such run, a run is named twice, a table has no finished run, or
            a name is that of an evaluation.
    """
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.library import Library

    paths = [run.path if (run := RunFolder.find(name)) else Path(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise ConfigError(f"{name} was passed twice, but a run is one seed. Name it once.")
    library = Library(names)
    if library.evals():
        name = next(name for name in names if Library([name]).evals())
        raise ConfigError(
            f"{name} is an evaluation or a table of evaluations, which have no curves over "
            "training. Name runs; `coevo runs list` lists them."
        )
    tables = [table.path for table in library.tables().values()]
    runs = RunCollection(library).runs()
    unfinished = [
        run for run in runs if run.folder.path.parent in tables and not run.folder.summary.is_file()
    ]
    if unfinished:
        finished = [run for run in runs if run not in unfinished]
        names_left_out = ", ".join(run.name for run in unfinished)
        if not finished:
            raise ConfigError(
                f"No run of {', '.join(map(str, tables))} is finished. Continue the experiment "
                f"with the command that began it, or name runs to plot them as far as they are: "
                f"{names_left_out}."
            )
        say_to_stderr(f"Left out, because they are not finished: {names_left_out}.")
        return finished
    return runs


def _say_seeds(curves: Sequence[MeanCurve], band: BandKind) -> None:
    """Print how many seeds each line has, and which lines have no band."""
    for seeds in sorted({curve.seeds for curve in curves}):
        of = [curve for curve in curves if curve.seeds == seeds]
        text = f"{', '.join(curve.label for curve in of)}: {seeds} seed{'s' * (seeds > 1)}"
        if not of[0].low:
            few = "one seed" if seeds == 1 else f"fewer than 3 seeds (--band {band.value})"
            text += f". A line of {few} has no band"
        say_to_stderr(f"{text}.")


def _print_metrics(names: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        print_json({"x": ["step", "env_steps"], **names})
        return
    say_block(
        "Metrics",
        [
            ("axes", "step, env_steps"),
            ("on held-out tasks", ", ".join(names["eval"]) or "none"),
            ("in training", ", ".join(names["step"]) or "none"),
        ],
    )
