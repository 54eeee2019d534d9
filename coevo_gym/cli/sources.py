"""Lookup and tab completion of names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from coevo_gym.core.benchmark import (
    BenchmarkSpec,
    benchmark_specs,
    find_spec_by_any_name,
    require_spec_by_any_name,
)
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.task import Split
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder
from coevo_gym.trainers.adapters.trainer import TRAINERS, Trainer

Names = Callable[[], Iterable[str]]


def make_completer(*sources: Names) -> Callable[[str], list[str]]:
    """Create a completer for an argument from functions that list its possible values."""

    def complete(incomplete: str) -> list[str]:
        return [name for names in sources for name in names() if name.startswith(incomplete)]

    return complete


def benchmark_names() -> list[str]:
    """List the names of the benchmarks."""
    return [spec.name for spec in benchmark_specs()]


def preset_names() -> list[str]:
    """List the names of the presets."""
    from coevo_gym.runs import config

    return config.preset_names()


def card_names() -> list[str]:
    """List the names of the GPUs that a run can be planned for."""
    from coevo_gym.runs.planning.device import CARDS

    return list(CARDS)


def table_names() -> list[str]:
    """List the names of the experiment tables."""
    from coevo_gym.runs.experiments.definition import experiment_names

    return list(experiment_names())


def run_names() -> list[str]:
    """List the names of the runs in ``runs/``."""
    return list(RunFolder.names())


def eval_names() -> list[str]:
    """List the names of the evaluations in ``evals/``."""
    return list(EvalFolder.names())


def panel_names() -> list[str]:
    """List the names of the shipped panels."""
    from coevo_gym.runs.panels.panel_files import shipped_names

    return shipped_names()


BenchmarkName = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK",
        help="Name of a benchmark; see `coevo envs`.",
        autocompletion=make_completer(benchmark_names),
    ),
]
BenchmarkOrRows = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK",
        help="Name of a benchmark; with --verify, a JSONL file of rows.",
        autocompletion=make_completer(benchmark_names),
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Name or folder of a run.", autocompletion=make_completer(run_names)
    ),
]
BenchmarkOrRun = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK_OR_RUN",
        help="Name of a benchmark or a run.",
        autocompletion=make_completer(benchmark_names, run_names),
    ),
]


class NativeSplit(StrEnum):
    """Splits of a benchmark's own tasks that can be selected on the command line."""

    TRAIN = Split.TRAIN
    VAL = Split.VAL
    TEST = Split.TEST


def find_installable(name: str) -> BenchmarkSpec | Trainer:
    """Return the benchmark or trainer with this name.

    Raises:
        TaskError: if neither exists.
    """
    package = find_spec_by_any_name(name) or TRAINERS.get(name.lower())
    if package is None:
        names, trainers = [spec.name for spec in benchmark_specs()], list(TRAINERS)
        raise TaskError(
            f"There is no benchmark or trainer {name!r}. "
            f"{did_you_mean(name.lower(), [*names, *trainers])}Benchmarks: {', '.join(names)}. "
            f"Trainers: {', '.join(trainers)}."
        )
    return package


def find_benchmark_or_rows(source: str, verify: str, tools: Iterable[str]) -> BenchmarkSpec:
    """Return the benchmark with a name, or with ``verify`` make one from a JSONL file of rows.

    Args:
        source: name of the benchmark, or path of the file.
        verify: for rows: the function that judges answers, as ``"FILE.py:FUNCTION"``.
        tools: for rows: functions and classes that the agent can call, in the same form.

    Raises:
        ConfigError: if the rows or a function cannot be loaded.
        TaskError: if the benchmark does not exist.
    """
    from coevo_gym.envs.rows import from_rows
    from coevo_gym.envs.rows.source import load_function

    if verify:
        called = [load_function(tool) for tool in tools]
        source = from_rows(source, load_function(verify), tools=called).name
    elif source.endswith(".jsonl") or [*tools]:
        raise ConfigError(
            f"To use {source} as a file of rows, also pass --verify FILE.py:FUNCTION, a function "
            "verify(row, answer)."
        )
    return require_spec_by_any_name(source)


def setup_module_of(spec: BenchmarkSpec) -> Any:
    """Return the module that installs a benchmark.

    Raises:
        ConfigError: if there is nothing to install.
    """
    if not spec.setup:
        raise ConfigError(f"{spec.name} needs no installation.")
    return import_module(spec.setup)
