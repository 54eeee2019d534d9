"""The experiments that exist, built-in and in a user's folder, and the costs of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import coevo_gym
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.registry import METHODS, suggest
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.runs.experiments.cells import resolve_cell, settings_of_shared_start
from coevo_gym.runs.experiments.definition import (
    Experiment,
    Size,
    experiment_names,
    load_experiment,
)
from coevo_gym.runs.experiments.measures import PARTS, read_measures
from coevo_gym.runs.experiments.records import ENDING, read_records
from coevo_gym.runs.manifest import config_in, read_manifest
from coevo_gym.runs.planning.cost import estimate_costs
from coevo_gym.runs.planning.plan import plan_run
from coevo_gym.store.folder import RUNS, RunFolder

Origin = Literal["built-in", "own"]
RESULTS = "results"
"""Name of the folder with published cells, in the current folder or in the checkout."""


@dataclass(frozen=True)
class MeasuredTime:
    """The time that stored cells with the same settings have taken, on average.

    Attributes:
        cells: number of these cells.
        wall_minutes: wall time of rollouts, updates and rounds, without evaluations.
        cpu_minutes: processor time after the warm-up; None if it was not measured.
        sources: files and folders in which the cells are stored.
    """

    cells: int
    wall_minutes: float
    cpu_minutes: float | None
    sources: tuple[str, ...]


@dataclass(frozen=True)
class TableCost:
    """The cost of running all cells of an experiment.

    Attributes:
        cells: number of cells.
        env_steps: maximum number of env steps in training.
        sampled_tokens: maximum number of tokens that policies sample in training; 0 for policies
            without tokens.
        asked_tokens: maximum number of tokens that other models read and write, approximately.
        measured: the time that stored cells have taken; None if there are none.
    """

    cells: int
    env_steps: int
    sampled_tokens: int
    asked_tokens: int
    measured: MeasuredTime | None


def table_cost(experiment: Experiment, benchmark: str, budget: Size) -> TableCost:
    """Return the cost of an experiment, with its default seeds.

    Raises:
        ConfigError: if a row's settings are invalid, or the budget is unknown.
    """
    configs = {
        row.name: resolve_cell(
            experiment, row, experiment.seeds[0], benchmark=benchmark, budget=budget
        ).config
        for row in experiment.rows
        if not row.shows
    }
    with forbid_setup():
        plans = [plan_run(config) for config in configs.values()]
    asked = [one.cost.tokens for config in configs.values() for one in estimate_costs(config)]
    n = len(experiment.seeds)
    wanted = {name: settings_of_shared_start(config) for name, config in configs.items()}
    return TableCost(
        cells=n * len(configs),
        env_steps=n * sum(plan.max_env_steps for plan in plans),
        sampled_tokens=n * sum(plan.max_sampled_tokens or 0 for plan in plans),
        asked_tokens=n * sum(asked),
        measured=_measured_time(experiment.name, wanted),
    )


def _measured_time(name: str, wanted: Mapping[str, Mapping[str, Any]]) -> MeasuredTime | None:
    """Return the mean time of stored cells whose settings are those of the table's rows.

    ``wanted`` are the settings of each row, apart from its name.
    """
    wall, cpu, sources = list[float](), list[float](), dict[str, None]()
    known = set[str]()
    for cell, config, measures, source in _stored_cells(name):
        row = cell.rpartition("-")[0]
        seconds = measures.get("seconds")
        if cell in known or row not in wanted or not seconds:
            continue
        theirs = {**settings_of_shared_start(config), "seed": wanted[row]["seed"]}
        if theirs != wanted[row]:
            continue
        known.add(cell)
        sources[source] = None
        wall.append(sum(seconds.get(part, 0.0) for part in PARTS) / 60)
        if (hours := measures.get("cpu_hours")) is not None:
            cpu.append(60 * hours)
    if not wall:
        return None
    return MeasuredTime(len(wall), fmean(wall), fmean(cpu) if cpu else None, tuple(sources))


def _stored_cells(name: str) -> Iterator[tuple[str, Any, Mapping[str, Any], str]]:
    """Yield the name, settings, measures and place of each stored cell of a table.

    Damaged cells are skipped: other commands report them.
    """
    for folder in sorted(RUNS.glob(f"{name}*/")):
        for run in RunFolder.of_table(folder):
            try:
                if run.summary.is_file():
                    yield run.path.name, read_manifest(run)[1], read_measures(run), str(folder)
            except StoreError:
                continue
    checkout = Path(coevo_gym.__file__).resolve().parents[1]
    for root in dict.fromkeys((Path(RESULTS).resolve(), checkout / RESULTS)):
        for path in sorted(root.glob(f"{name}*{ENDING}")):
            try:
                for record in read_records(path).values():
                    config = config_in(record.manifest, record.where)
                    yield record.name, config, record.measures, f"{RESULTS}/{path.name}"
            except StoreError:
                continue


def find_experiments(
    *,
    benchmark: str | None = None,
    method: str | None = None,
    origin: Origin | None = None,
    words: Sequence[str] = (),
) -> list[tuple[Origin, Experiment]]:
    """Return the experiments that match all filters, built-in ones first.

    Args:
        benchmark: a benchmark that the experiment is intended for.
        method: a method of one of its rows.
        origin: ``built-in``, or ``own`` for TOML files in the current folder.
        words: words that its name, title, source, remarks, rows or methods contain.

    Raises:
        ConfigError: if no experiment is intended for the benchmark, or has the method.
    """
    entries: list[tuple[Origin, Experiment]] = []
    if origin != "own":
        entries += [("built-in", load_experiment(name)) for name in experiment_names()]
    if origin != "built-in":
        entries += [("own", one) for one in _own_experiments()]
    benchmarks = {name for _, one in entries for name in one.benchmarks}
    if benchmark is not None and benchmark not in benchmarks:
        raise ConfigError(
            f"No experiment is intended for the benchmark {benchmark!r}. "
            f"{suggest(benchmark, sorted(benchmarks)) if benchmarks else ''}"
        )
    if method is not None and not any(method in _methods_of(one) for _, one in entries):
        known = sorted({name for _, one in entries for name in _methods_of(one)})
        raise ConfigError(
            f"No experiment has a row with the method {method!r}. {suggest(method, known)}"
        )
    return [
        (kind, one)
        for kind, one in entries
        if (benchmark is None or benchmark in one.benchmarks)
        and (method is None or method in _methods_of(one))
        and all(word.lower() in _text_of(one) for word in words)
    ]


def _own_experiments() -> Iterator[Experiment]:
    """Yield the experiments in TOML files of the current folder. Other TOML files are skipped."""
    for path in sorted(Path().glob("*.toml")):
        try:
            yield load_experiment(str(path))
        except ConfigError:
            continue


def _methods_of(experiment: Experiment) -> set[str]:
    rows = [row for row in experiment.rows if not row.shows]
    names = {row.method or row.name for row in rows}
    return {name for name in names if name in METHODS.names()}


def _text_of(experiment: Experiment) -> str:
    rows = (f"{row.name} {row.label} {row.method}" for row in experiment.rows)
    parts = (experiment.name, experiment.title, experiment.source, experiment.about, *rows)
    return " ".join(parts).lower()
