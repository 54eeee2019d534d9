"""``coevo experiment``: produce a whole table of results with one command."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    INTERRUPTED,
    AsJson,
    as_text,
    errors,
    print_json,
    print_table_unwrapped,
    require_writable,
    say,
    say_block,
    say_to_stderr,
)
from coevo_gym.cli.plot import SIZE_HELP, PlotSize
from coevo_gym.cli.settings import (
    Card,
    IgnoreMemory,
    Sets,
    Yes,
    describe_run_plan,
    prepare_run,
    print_plan,
)
from coevo_gym.cli.sources import benchmark_names, make_completer, table_names
from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.display import RunProgress, send_logs_to
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.store.folder import RUNS

if TYPE_CHECKING:
    from coevo_gym.runs.experiments.cells import Chosen
    from coevo_gym.runs.experiments.definition import Experiment
    from coevo_gym.runs.experiments.results import ResultTable


class OriginName(StrEnum):
    """Origins of tables that the list can be limited to."""

    BUILT_IN = "built-in"
    OWN = "own"


class BudgetName(StrEnum):
    """Names of the budgets that can be selected on the command line."""

    TINY = "tiny"
    SMALL = "small"
    PAPER = "paper"


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME_OR_TOML]",
            help="Name of a table (see --list), or a .toml file.",
            autocompletion=make_completer(table_names),
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Benchmark to train on; the table's first benchmark by default.",
            autocompletion=make_completer(benchmark_names),
        ),
    ] = None,
    budget: Annotated[
        BudgetName | None,
        typer.Option(
            help="Budget per cell. tiny: a quick test, minutes on a CPU; small: a full run of a "
            "small policy on a CPU; paper: the paper's settings. Default: set by the table."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Number of seeds (such as 3) or a list of seeds (such as 401-420 or 1,4,9). "
            "Default: set by the table."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="ROW,...", help="Rows to run and print, separated by commas; all by default."
        ),
    ] = None,
    sets: Sets = None,
    run_name: Annotated[
        str | None, typer.Option("--name", help="Name of the table's folder in runs/.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric in table.json to compare rows by. Default: set by the table."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="File of finished cells (.jsonl) to use instead of running those cells again.",
        ),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Only print finished cells, without writing files.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Instead of running cells, append the finished ones to this .jsonl file, one per "
            "line, and write a table of all cells in the file to a .md file next to it.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the table to this file (.pdf, .svg or .png): its learning curves, if "
            "it measures them, or else each row's results.",
        ),
    ] = None,
    size: Annotated[
        PlotSize | None, typer.Option("--size", help=SIZE_HELP, show_default="column")
    ] = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the tables with their requirements and costs, then exit. --benchmark, "
            "--method, --origin and --find limit the list.",
        ),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="With --list: tables with a row of this method."),
    ] = None,
    origin: Annotated[
        OriginName | None,
        typer.Option(
            help="With --list: built-in tables, or your own, in .toml files in this folder.",
            show_default="both",
        ),
    ] = None,
    find: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="With --list: tables with this word in their name, title, source or rows. May be "
            "repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what each cell would run and need, then exit."),
    ] = False,
    card: Card = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Run every missing cell, even if another table has finished the identical cell.",
        ),
    ] = False,
    yes: Yes = False,
    ignore_memory: IgnoreMemory = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
) -> None:
    """Run the experiments of a paper's table, or of your own table, and print the results.

    A cell is one row with one seed, stored as a run in runs/TABLE/ROW-SEED. Run the same command
    again to continue after Ctrl-C: finished cells are skipped, and an interrupted cell is resumed.
    Cells with the same seed share their warm-up and initial tasks. A cell that another table has
    finished with the same settings, seed and code is used again. Results are saved as table.md,
    .csv and .json in runs/TABLE. To keep or publish a table without its runs, export its finished
    cells to one file.

    For example:

      coevo experiment --list

      coevo experiment --list --benchmark alfworld --method coevolve --find table

      coevo experiment controls --budget tiny --seeds 2

      coevo experiment coevolve_table5 --benchmark alfworld --rows static,all

      coevo experiment role_agent_table3 --budget paper --dry-run

      coevo experiment rbc_noisy --seeds 401-404 --md

      coevo experiment my_table.toml --set loop.max_env_steps=20000 --name longer

      coevo experiment rbc_noisy --export results/rbc_noisy.jsonl

      coevo experiment rbc_noisy --from results/rbc_noisy.jsonl --finished --csv

      coevo experiment rbc_noisy --from results/rbc_noisy.jsonl --finished --plot rbc_noisy.pdf
    """
    if sum((as_json, as_csv, as_md)) > 1:
        raise ConfigError("Pass only one of --json, --csv and --md.")
    if plot is not None:
        from coevo_gym.view.figure import check_figure_target

        if listing or dry_run:
            raise ConfigError("--plot draws results. Omit it with --list and --dry-run.")
        require_writable(plot)
        check_figure_target(plot)
    elif size is not None:
        raise ConfigError("--size is the width of a figure, so it needs --plot.")
    from coevo_gym.runs.experiments.cells import choose_cells
    from coevo_gym.runs.experiments.definition import load_experiment

    budget_name = None if budget is None else budget.value
    if listing:
        from coevo_gym.runs.experiments.listing import find_experiments

        if name is not None:
            if method or origin or find:
                raise ConfigError(f"Omit {name} to filter the list, or omit the filters.")
            whose = "own" if name.endswith(".toml") else "built-in"
            entries: Sequence[tuple[str, Experiment]] = [(whose, load_experiment(name))]
        else:
            entries = find_experiments(
                benchmark=benchmark,
                method=method,
                origin=None if origin is None else origin.value,
                words=find or (),
            )
        _print_experiment_list(entries, benchmark, budget_name, as_json)
        return
    for option, value in (("--method", method), ("--origin", origin), ("--find", find)):
        if value:
            raise ConfigError(f"{option} filters the list of tables, so it needs --list.")
    if name is None:
        raise ConfigError("No table given. `coevo experiment --list` lists all tables.")
    names = tuple(part.strip() for part in rows.split(",") if part.strip()) if rows else ()
    chosen = choose_cells(
        load_experiment(name),
        RUNS,
        benchmark=benchmark,
        budget=budget_name,
        seeds=seeds,
        rows=names,
        sets=list(sets or ()),
        name=run_name,
        metric=metric,
        records=source,
    )
    if dry_run:
        if as_csv or as_md:
            raise ConfigError("--dry-run only prints text or JSON. Omit --csv and --md.")
        _print_plan(chosen, card, as_json)
        return
    if card is not None:
        raise ConfigError("--card selects the GPU to plan for, so it needs --dry-run.")
    if export is not None:
        from coevo_gym.runs.experiments.making import export_cells

        table = export_cells(chosen, export)
        say_to_stderr(f"Cells: {export}. Table: {export.with_suffix('.md')}")
    elif finished:
        from coevo_gym.runs.experiments.making import build_finished_table

        table = build_finished_table(chosen)
    else:
        table = _run_with_progress(chosen, yes, ignore_memory, fresh)
    _print_results(table, as_json, as_csv, as_md)
    if plot is not None:
        from coevo_gym.view.figure import table_chart, write_figure

        write_figure(table_chart(table), plot, (size or PlotSize.COLUMN).value)
        say_to_stderr(f"Figure: {plot}")


def _run_with_progress(chosen: Chosen, yes: bool, ignore_memory: bool, fresh: bool) -> ResultTable:
    """Run an experiment's missing cells, write the result files, and print their location."""
    for cell in chosen.cells():
        if cell.state != "finished":
            prepare_run(cell.config, yes=yes, ignore_memory=ignore_memory)
    from coevo_gym.runs.experiments.making import run_experiment

    with (
        RunProgress(errors, one_line=True) as progress,
        send_logs_to(progress.say),
        StopRequest() as stop,
    ):
        try:
            table, counts = run_experiment(chosen, progress, stop, agreed=yes, fresh=fresh)
        except Stopped:
            again = " ".join(sys.argv[1:]) or f"experiment {chosen.experiment.name}"
            progress.say(f"Stopped and saved. Continue with: coevo {again}")
            raise typer.Exit(INTERRUPTED) from None
    say_to_stderr(f"{counts}. Table: {chosen.folder / 'table.md'}")
    return table


def _print_plan(chosen: Chosen, card: str | None, as_json: bool) -> None:
    """Print each run's plan and requirements in a table, without repeating identical plans."""
    from coevo_gym.runs.experiments.making import paper_results_and_notes
    from coevo_gym.runs.experiments.needs import omit_rows_lacking_language_model

    experiment, benchmark, budget = chosen.experiment, chosen.benchmark, chosen.budget
    chosen, cells, why = omit_rows_lacking_language_model(chosen)
    results, differing = paper_results_and_notes(chosen, cells)
    plans: dict[tuple[tuple[str, str], ...], tuple[list[str], dict[str, Any]]] = {}
    for cell in cells[: len({cell.row.name for cell in cells})]:  # the first seed's
        planned = describe_run_plan(cell.config, card)
        without_name = tuple(pair for pair in planned.rows if pair[1] != cell.row.name)
        plans.setdefault(without_name, ([], planned.numbers))[0].append(cell.row.name)
    notes = [*([why] if why else ()), *differing]
    if as_json:
        print_json(
            {
                "name": experiment.name,
                "benchmark": benchmark,
                "budget": budget,
                "folder": str(chosen.folder),
                "cells": [
                    {"row": cell.row.name, "seed": cell.seed, "state": cell.state} for cell in cells
                ],
                "paper": results,
                "notes": notes,
                "plans": [{"rows": names, **numbers} for names, numbers in plans.values()],
            }
        )
        return
    states = Counter(cell.state for cell in cells)
    counts = ", ".join(f"{n} {state}" for state, n in states.items())
    facts = [
        ("cells", f"{len(cells)} in {chosen.folder}: {counts}"),
        ("paper", f"numbers beside {', '.join(results)}" if results else "no numbers"),
        *(("note", note) for note in notes),
    ]
    say_block(f"{experiment.title} ({benchmark}, budget {budget})", facts)
    for pairs, (names, _) in plans.items():
        print_plan(pairs, f"\neach cell of {', '.join(names)}")


def _print_results(table: ResultTable, as_json: bool, as_csv: bool, as_md: bool) -> None:
    from coevo_gym.runs.experiments import writing

    if as_json or as_csv or as_md:
        make = writing.as_json if as_json else writing.as_csv if as_csv else writing.as_markdown
        typer.echo(make(table), nl=False)
        return
    say(f"{table.title} ({table.benchmark}, budget {table.budget})")
    grids = [("", writing.main_grid(table)), *writing.further_grids(table)]
    for title, (heads, rows) in grids:
        columns = [
            Column(head, overflow="fold", style="dim" if head.startswith("paper") else "")
            for head in heads
        ]
        grid = Table(*columns, title=title or None)
        for row in rows:
            grid.add_row(*map(escape, row))
        print_table_unwrapped(grid, keys=writing.KEYS)
    for note in table.notes:
        say(note)


def _print_experiment_list(
    entries: Sequence[tuple[str, Experiment]],
    benchmark: str | None,
    budget: str | None,
    as_json: bool,
) -> None:
    rows = [
        {**_describe_experiment(experiment, benchmark, budget), "origin": origin}
        for origin, experiment in entries
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("No table matches. `coevo experiment --list` lists all tables.")
    for row in rows:
        facts = [
            ("", f"{row['title']} ({row['source']})" if row["source"] else row["title"]),
            ("rows", as_text(row["rows"])),
            ("benchmarks", as_text(row["benchmarks"])),
            ("budget", row["budget"]),
            ("costs", _format_cost(row["cost"])),
            ("measured", _format_time(row["cost"]["measured"])),
            ("needs", as_text(row["needs"]) or "nothing"),
            ("runs here", "yes" if row["ready"] else "no"),
            *(("missing", missing) for missing in row["missing"]),
        ]
        say_block(row["name"], facts, style="" if row["ready"] else "dim")


def _format_cost(cost: dict[str, Any]) -> str:
    tokens = [
        f"at most {cost[key]:,} tokens {what}"
        for key, what in (("sampled_tokens", "in training"), ("asked_tokens", "of other models"))
        if cost[key]
    ]
    steps = f"{cost['cells']} cells, at most {cost['env_steps']:,} env steps in training"
    return ", ".join([steps, *(tokens or ["no tokens"])])


def _format_time(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "not known: no stored cell has these settings"
    cpu = measured["cpu_minutes"]
    times = f"{measured['wall_minutes']:.1f} minutes per cell without evaluations"
    if cpu is not None:
        times = f"{cpu:.1f} CPU minutes per cell; {times}"
    return f"{times} ({measured['cells']} cells in {as_text(measured['sources'])})"


def _describe_experiment(
    entry: Experiment, benchmark: str | None, budget: str | None
) -> dict[str, Any]:
    from coevo_gym.runs.experiments.cells import find_budget
    from coevo_gym.runs.experiments.listing import table_cost
    from coevo_gym.runs.experiments.needs import needs_of

    size, where = find_budget(entry, budget), benchmark or entry.benchmarks[0]
    needs = needs_of(entry, where, size)
    missing = [f"{need.what}: {need.missing}" for need in needs if need.missing]
    return {
        "name": entry.name,
        "title": entry.title,
        "source": entry.source,
        "rows": [row.name for row in entry.rows],
        "benchmarks": list(entry.benchmarks),
        "budget": size,
        "seeds": list(entry.seeds),
        "cost": asdict(table_cost(entry, where, size)),
        "needs": [need.what for need in needs],
        "missing": missing,
        "ready": not missing,
    }
