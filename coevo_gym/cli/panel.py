"""``coevo panel``: fixed lists of tasks, and tables of results on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    FAILED,
    AsJson,
    format_cell,
    print_json,
    print_table,
    print_table_unwrapped,
    require_writable,
    say,
    say_to_stderr,
    show_progress,
)
from coevo_gym.cli.settings import Tools, Verify
from coevo_gym.cli.sources import (
    BenchmarkOrRows,
    NativeSplit,
    eval_names,
    find_benchmark_or_rows,
    make_completer,
    panel_names,
    run_names,
)
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import CITED_DIGITS, Panel
from coevo_gym.core.task import thaw
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.runs.panels.exporting import ExportFormat
from coevo_gym.store.folder import write_atomic

if TYPE_CHECKING:
    from coevo_gym.runs.evals.ledger import Ledger
    from coevo_gym.runs.panels.panel_files import PanelCheck


class Peer(StrEnum):
    """Code bases whose evaluations can be imitated."""

    VERL_AGENT = "verl-agent"


app = typer.Typer(no_args_is_help=True)

PanelName = Annotated[
    str,
    typer.Argument(
        metavar="PANEL",
        help="Name of a shipped panel (see `coevo panel list`), or a panel's file.",
        autocompletion=make_completer(panel_names),
    ),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        metavar="FILE.jsonl",
        help="File with the rows, if the panel is of your own rows. Also pass --verify.",
        exists=True,
        dir_okay=False,
    ),
]


@app.callback()
def _group() -> None:
    """List, show, make and verify panels (fixed lists of tasks), and put results into one table.

    A panel contains hashes of its tasks' content, so two results on it are always results on the
    same tasks.

    For example:

      coevo panel list

      coevo panel verify alfworld-valid-seen-140

      coevo panel make webshop --split test --size 100 --name mine

      coevo panel table small large --known
    """


@app.command("list")
def list_panels(as_json: AsJson = False) -> None:
    """List the shipped panels. Their benchmarks need not be installed.

    For example: coevo panel list --json
    """
    from coevo_gym.runs.panels.panel_files import find_panel, shipped_names

    panels = [find_panel(name) for name in shipped_names()]
    if as_json:
        print_json([_head_to_json(panel) for panel in panels])
        return
    table = Table(box=None, expand=True)
    for column in ("name", "tasks", "split", "hash"):
        table.add_column(column, no_wrap=True)
    table.add_column("tasks are", ratio=1)
    for panel in panels:
        row = (panel.name, len(panel.tasks), panel.split, panel.hash[:CITED_DIGITS], panel.about)
        table.add_row(*map(format_cell, row))
    print_table(table)
    say_to_stderr(
        f"{len(panels)} panels; `coevo panel show NAME` shows one, and `coevo eval --panel NAME` "
        "evaluates on it."
    )


def _head_to_json(panel: Panel) -> dict[str, Any]:
    return {
        "name": panel.name,
        "about": panel.about,
        "benchmark": panel.benchmark,
        "split": str(panel.split),
        "env": thaw(panel.env),
        "data": dict(panel.data),
        "hash": panel.hash,
        "n_tasks": len(panel.tasks),
    }


@app.command("show")
def show_panel(
    source: PanelName,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show at most N tasks.")
    ] = None,
    rows: Rows = None,
    verify: Verify = "",
    tools: Tools = None,
    as_json: AsJson = False,
) -> None:
    """Show a panel and its tasks.

    Instructions are not part of a panel. They are filled in where the benchmark's data is installed
    and contains the same tasks.

    For example:

      coevo panel show alfworld-valid-seen-140 --limit 10

      coevo panel show mine.json --json
    """
    from coevo_gym.runs.panels.exporting import find_instructions
    from coevo_gym.runs.panels.panel_files import find_panel

    panel = find_panel(source)
    _use_rows(panel, rows, verify, tools)
    with forbid_setup():
        texts, missing = find_instructions(panel)
    entries = panel.tasks[:limit]
    if as_json:
        tasks = [
            {
                "id": entry.id,
                "hash": entry.hash,
                "scenario": entry.scenario,
                "place": thaw(entry.place),
                "parts": dict(entry.parts),
                "instruction": texts.get(entry.id, ""),
            }
            for entry in entries
        ]
        print_json({**_head_to_json(panel), "tasks": tasks})
        return
    _print_head(panel)
    table = Table(box=None, expand=True)
    for column in ("id", "hash"):
        table.add_column(column, no_wrap=True)
    table.add_column("instruction", no_wrap=True, ratio=1)
    for entry in entries:
        table.add_row(
            *map(format_cell, (entry.id, entry.hash[:CITED_DIGITS], texts.get(entry.id, "")))
        )
    if entries:
        print_table(table)
    say_to_stderr(f"{len(entries)} of {len(panel.tasks)} tasks; --json prints all their hashes.")
    if missing:
        say_to_stderr(f"Instructions are missing. {missing}")


def _print_head(panel: Panel) -> None:
    facts = {
        "name": panel.name,
        "about": panel.about,
        "benchmark": panel.benchmark,
        "split": panel.split,
        **{f"env {key}": value for key, value in panel.env.items()},
        **{f"data {key}": value for key, value in panel.data.items()},
        "tasks": len(panel.tasks),
        "hash": panel.hash,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name:<{width}}  {value}")


@app.command("make")
def make(
    benchmark: BenchmarkOrRows,
    split: Annotated[NativeSplit, typer.Option(help="Split to take tasks from.")] = NativeSplit.VAL,
    subset: Annotated[str | None, typer.Option(help="Only use tasks of this subset.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only use tasks whose panel entry has this value, such as category=base; may be "
            "repeated.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Name or id of a task; may be repeated."),
    ] = None,
    list_: Annotated[
        Path | None,
        typer.Option(
            "--list",
            metavar="FILE",
            help="Text file with one game path, goal position or id per line. The panel keeps the "
            "order of this file.",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draw N of the tasks.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", help="Random seed for drawing the tasks (see --size).")
    ] = 0,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME=VALUE",
            help="Env argument that chooses tasks, such as scheme=all200; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the panel.", show_default="BENCHMARK-SPLIT-N")
    ] = "",
    about: Annotated[
        str,
        typer.Option(
            help="Description of how the tasks were chosen.", show_default="these options"
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write.", show_default="NAME.json"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing file.")
    ] = False,
    verify: Verify = "",
    tools: Tools = None,
    as_json: AsJson = False,
) -> None:
    """Make a panel from the installed data, and write it to a file.

    Without --id or --list, the panel has all tasks of the split, in the benchmark's order. A draw
    keeps the N tasks with the smallest SHA-256 of "SEED ID". The same options and data
    produce the same file on every machine.

    For example:

      coevo panel make alfworld --split val --size 128 --name mine

      coevo panel make webshop --split test --subset official_test --list positions.txt

      coevo panel make bfcl --split test --env scheme=all200 --where category=base

      coevo panel make rows.jsonl --verify mine.py:check --split test
    """
    from coevo_gym.core.registry import load_object
    from coevo_gym.runs.evals.job import parse_env_arguments
    from coevo_gym.runs.panels.making import ListLine, make_panel, read_list

    if ids and list_ is not None:
        raise ConfigError("Pass --id or --list, not both.")
    require_writable(out)
    spec = find_benchmark_or_rows(benchmark, verify, tools or ())
    chosen = {"subset": subset} if subset is not None else {}
    lines = [ListLine(id, "--id") for id in ids or ()] if list_ is None else read_list(list_)
    with show_progress("making the panel"), forbid_setup():
        panel = make_panel(
            spec.name,
            split=str(split),
            env={**chosen, **parse_env_arguments(load_object(spec.env), env or ())},
            where=_parse_pairs(where or (), "--where"),
            lines=lines,
            size=size,
            seed=seed,
            name=name,
            about=about,
        )
    file = Path(f"{panel.name}.json") if out is None else out
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} already exists. Choose another --out, or pass --overwrite.")
    write_atomic(file, panel.to_json().encode())
    if as_json:
        print_json({**_head_to_json(panel), "file": str(file)})
    else:
        say(f"{file}: {panel.reference}, {len(panel.tasks)} tasks")
        say_to_stderr(f"To evaluate on it, run `coevo eval {benchmark} --panel {file} …`.")


def _parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parse the values of an option, each as ``NAME=VALUE``."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{option} must have the form NAME=VALUE, got {pair!r}.")
        parsed[name] = value
    return parsed


@app.command("verify")
def verify_panel(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PANEL",
            help="Name of a shipped panel, or path of a panel file.",
            autocompletion=make_completer(panel_names),
        ),
    ] = None,
    cite: Annotated[
        str | None,
        typer.Option(
            "--cite",
            metavar="LINE",
            help="Check the last line of an evaluation's result instead of the installed data.",
        ),
    ] = None,
    rows: Rows = None,
    verify: Verify = "",
    tools: Tools = None,
    as_json: AsJson = False,
) -> None:
    """Check that the installed data contains a panel's tasks, with the same content.

    The exit code is 1 if a task is missing or differs; each is listed with the parts of its content
    that differ. A different version of the data is reported, but is not an error if all tasks are
    the same.

    With --cite, the command checks a line that cites a result: whether its panel is the shipped one
    of this name or the one in the file, and whether its numbers are consistent. The exit code is 1
    if a check fails. The command cannot check that the evaluation took place.

    For example:

      coevo panel verify alfworld-valid-seen-140

      coevo panel verify mine.json --json

      coevo panel verify --cite "mine@0123456789ab: success …" mine.json
    """
    from coevo_gym.runs.panels.panel_files import check_panel, find_panel

    if cite is not None:
        _verify_citation(cite, source, as_json)
        return
    if source is None:
        raise ConfigError("Name a panel, or pass --cite LINE.")
    panel = find_panel(source)
    _use_rows(panel, rows, verify, tools)
    with show_progress(f"verifying {panel.name}"), forbid_setup():
        check = check_panel(panel)
    if as_json:
        print_json(_check_to_json(check))
    else:
        for difference in check.differences:
            say(f"{difference.id} {difference}.")
        for one in check.data:
            say_to_stderr(f"Data differs: {one}.")
        same = len(panel.tasks) - len(check.differences)
        say(f"{same} of {len(panel.tasks)} tasks are as in the panel {panel.reference}.")
    if check.differences:
        raise typer.Exit(FAILED)


def _check_to_json(check: PanelCheck) -> dict[str, Any]:
    return {
        **_head_to_json(check.panel),
        "differences": [
            {"id": one.id, "missing": not one.parts, "parts": list(one.parts)}
            for one in check.differences
        ],
        "data_differences": [one._asdict() for one in check.data],
    }


def _verify_citation(line: str, file: str | None, as_json: bool) -> None:
    from coevo_gym.core.panel import Citation
    from coevo_gym.runs.panels.citing import check_citation, find_cited_panel
    from coevo_gym.runs.panels.panel_files import find_panel

    citation = Citation.parse(line)
    panel = find_cited_panel(citation) if file is None else find_panel(file)
    parts = [*check_citation(citation, panel)]
    if as_json:
        print_json([part._asdict() for part in parts])
    else:
        verdicts: Mapping[bool | None, str] = {True: "fits", False: "wrong", None: "not checked"}
        for part in parts:
            say(f"{part.part} {part.value}: {verdicts[part.holds]}. {part.about}")
    if any(part.holds is False for part in parts):
        raise typer.Exit(FAILED)


@app.command("export")
def export(
    source: PanelName,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--for",
            help="alfworld: paths of games; webshop: positions of goals; jsonl: whole tasks.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write.", show_default="print the lines"),
    ] = None,
    rows: Rows = None,
    verify: Verify = "",
    tools: Tools = None,
) -> None:
    """Write a panel as a list that other code can read, with one line per task.

    `coevo panel make --list` reads these lists. Paths and positions need no data; jsonl contains
    the texts of the installed data, including those that judge an episode. The command then prints
    the benchmark's conditions for sharing its tasks.

    For example:

      coevo panel export alfworld-valid-seen-140 --for alfworld --out games.txt

      coevo panel export webshop-official-500 --for webshop

      coevo panel export bfcl-base-200 --for jsonl --out tasks.jsonl
    """
    from coevo_gym.core.benchmark import find_spec
    from coevo_gym.runs.panels.exporting import export_panel
    from coevo_gym.runs.panels.panel_files import find_panel

    require_writable(out)
    panel = find_panel(source)
    _use_rows(panel, rows, verify, tools)
    with show_progress(f"exporting {panel.name}"), forbid_setup():
        lines = [*export_panel(panel, form)]
    text = "".join(f"{line}\n" for line in lines)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomic(out, text.encode())
        say(f"{out}: {len(lines)} tasks of {panel.reference}")
    spec = find_spec(panel.benchmark)
    if form is ExportFormat.JSONL and spec is not None and spec.terms:
        say_to_stderr(f"Before you share these tasks ({spec.name}): {spec.terms}")


def _use_rows(panel: Panel, rows: Path | None, verify: str, tools: Sequence[str] | None) -> None:
    """Create the benchmark for a panel of rows, under the name that the panel gives it."""
    from coevo_gym.envs.rows import from_rows
    from coevo_gym.envs.rows.source import load_function

    if rows is None and not verify and not tools:
        return
    if rows is None or not verify:
        raise ConfigError("For a panel of rows, pass both --rows FILE.jsonl and --verify FUNCTION.")
    called = [load_function(tool) for tool in tools or ()]
    from_rows(rows, load_function(verify), tools=called, name=panel.benchmark)


@app.command("table")
def print_ledger(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT...",
            help="Name or folder of a run or an evaluation; RUN:ARM for an arm other than the last "
            "one. To treat results as repeats, pass them as LABEL=RESULT with the same label.",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ],
    known: Annotated[
        bool,
        typer.Option(
            "--known",
            help="Also list published numbers of the benchmark, in grey and separate from your "
            "results.",
        ),
    ] = False,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            help="Use the best evaluation of each run, and say by how much this choice alone "
            "raises the result.",
        ),
    ] = False,
    peer: Annotated[
        Peer | None,
        typer.Option(
            "--as",
            help="Also print the last and the best result that evaluations on verl-agent's draws "
            "would have reported, for games of ALFWorld's valid_seen or valid_unseen and for "
            "WebShop. Needs at least 4 episodes per task in each evaluation.",
        ),
    ] = None,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print an HTML page.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the results of several policies on the same tasks as one table.

    Results of one policy with several seeds share a row: evaluations of a model, or runs whose
    settings differ only in the seed. The interval over tasks and the interval over repeats are
    printed separately. Each row is compared with the first one, task by task, if both have the same
    tasks. Settings that differ are listed below the table. Results on different declared panels are
    rejected.

    For example:

      coevo panel table small large --known

      coevo panel table static=run-1 static=run-2 quickstart:coevolve --md

      coevo panel table quickstart --best

      coevo panel table my-run --as verl-agent
    """
    if best and peer is not None:
        raise ConfigError("Pass only one of --best and --as, which chooses the best result itself.")
    if sum((as_md, as_csv, as_html, as_json)) > 1:
        raise ConfigError("Pass only one of --md, --csv, --html and --json.")
    from coevo_gym.runs.evals import ledger_text
    from coevo_gym.runs.evals.ledger import read_ledger

    ledger = read_ledger(results, known=known, best=best, peer=peer is not None)
    if as_json:
        print_json(_to_json(ledger))
    elif as_md or as_csv or as_html:
        make = ledger_text.as_html if as_html else ledger_text.as_csv
        typer.echo((ledger_text.as_markdown if as_md else make)(ledger), nl=False)
    else:
        _print_ledger(ledger)


def _print_ledger(ledger: Ledger) -> None:
    from coevo_gym.runs.evals.ledger_text import (
        HEADS,
        PEER_HEADS,
        PEER_TITLE,
        PUBLISHED,
        explanations,
        grid,
        peer_cells,
        title,
    )

    say(title(ledger))
    rows, published, notes = grid(ledger)
    used = [i for i, head in enumerate(HEADS) if any(cells[i] for cells in rows)]
    table = Table(*(Column(escape(HEADS[i]), overflow="fold") for i in used))
    for cells in rows:
        table.add_row(*(escape(cells[i]) for i in used))
    print_table_unwrapped(table, keys=("notes",))
    if published:  # a table of its own, because most cells would be empty
        table = Table(*(Column(escape(HEADS[i]), overflow="fold") for i in PUBLISHED), style="dim")
        for cells in published:
            table.add_row(*(escape(cells[i]) for i in PUBLISHED), style="dim")
        print_table_unwrapped(table, keys=("notes",))
    for number, note in enumerate(notes, start=1):
        say(f"{number}. {note}")
    if ledger.peer:
        say(f"{PEER_TITLE}:")
        table = Table(*(Column(escape(head), overflow="fold") for head in PEER_HEADS))
        for row in ledger.peer:
            table.add_row(*map(escape, peer_cells(row)))
        print_table_unwrapped(table, keys=PEER_HEADS[:2])
    for text in explanations(ledger):
        say(text)


def _to_json(ledger: Ledger) -> dict[str, object]:
    peer = [
        {
            "label": row.label,
            "mean": row.mean._asdict(),
            "repeats": [one._asdict() for one in row.repeats],
        }
        for row in ledger.peer
    ]
    known = [one.model_dump(mode="json") for one in ledger.known]
    return {**asdict(ledger), "peer": peer, "known": known}
