"""The runs selected from an experiment table: one run, called a cell, per row and seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import FrozenDict
from coevo_gym.runs.config import Resolved, RunConfig, arm_configs, load_config
from coevo_gym.runs.config.arms import KEYS, SECTIONS
from coevo_gym.runs.config.table_files import parse_seeds
from coevo_gym.runs.experiments.definition import Experiment, Row, Size
from coevo_gym.runs.experiments.records import ENDING, CellRecord, read_record, read_records
from coevo_gym.runs.manifest import config_in, read_manifest
from coevo_gym.store.folder import RunFolder, check_folder_name
from coevo_gym.store.secrets import redact_secrets

State = Literal["finished", "cut", "new"]
BESIDE = ("arithmetic", "sinks")
"""Settings that do not affect the result of a run, except for rounding."""
OF_A_MODEL = ("history_turns", "max_action_tokens", "thinking")
"""Explorer settings that have an effect only for model-based explorers."""
NAMED = ("name", "arms", "arm")
"""Settings that identify the arm; they may differ between cells that share their start."""
_MAX_LISTED = 8
"""Maximum number of cells in a message."""


@dataclass(frozen=True)
class Cell:
    """A cell of an experiment table: one arm with one seed.

    Attributes:
        resolved: settings of the run, with their origins.
        kept: record of the finished cell from a file, which is used instead of a run.
    """

    row: Row
    seed: int
    folder: RunFolder
    resolved: Resolved
    kept: CellRecord | None = None

    @property
    def name(self) -> str:
        """The name of the run, built from the row and the seed."""
        return self.folder.path.name

    @property
    def config(self) -> RunConfig:
        """The run's settings as a tree."""
        return self.resolved.config

    @property
    def state(self) -> State:
        """The state of the cell's run.

        Raises:
            ConfigError: if the existing run has different settings.
            StoreError: if the existing run cannot be read.
        """
        if self.kept is not None:
            previous = config_in(self.kept.manifest, self.kept.where)
            what = f"{self.name}, {self.kept.where},"
            self._check_settings(previous, what, "Leave out the file, or delete that line")
            return "finished"
        if not self.folder.manifest.is_file():
            return "new"
        there = read_manifest(self.folder)[1]
        self._check_settings(
            there, f"{self.folder.path}", "Choose another --name, or delete that folder"
        )
        return "finished" if self.folder.summary.is_file() else "cut"

    def read_record(self) -> CellRecord:
        """Return the settings and results of this cell's finished run.

        Raises:
            StoreError: if the run is not finished or cannot be read.
        """
        return read_record(self.folder) if self.kept is None else self.kept

    def _check_settings(self, config: RunConfig, what: str, remedy: str) -> None:
        there, here = settings_affecting_result(config), settings_affecting_result(self.config)
        if there != here:
            raise ConfigError(
                f"{what} was run with different settings: {_describe_differences(there, here)}. "
                f"{remedy}."
            )


@dataclass
class CellCounts:
    """Counts of the finished, resumed and new cells in an experiment table.

    Attributes:
        there: cells that were already finished, or are in a file of cells.
        resumed: interrupted cells that were resumed.
        new: cells that were started.
        used: cells for which another table's identical run is used.
    """

    there: int = 0
    resumed: int = 0
    new: int = 0
    used: int = 0

    def __str__(self) -> str:
        used = f", {self.used} used from other tables" if self.used else ""
        return f"{self.new} new cells, {self.resumed} resumed, {self.there} already finished{used}"


@dataclass(frozen=True)
class Chosen:
    """The selected rows, seeds, benchmark and budget of an experiment.

    Attributes:
        folder: folder of its runs and files.
        sets: settings that override all others.
        kept: records of finished cells by name, which are used instead of runs.
    """

    experiment: Experiment
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    benchmark: str
    budget: Size
    folder: Path
    sets: tuple[str, ...] = ()
    kept: Mapping[str, CellRecord] = FrozenDict()

    def cells(self) -> list[Cell]:
        """Return the experiment's cells, sorted by seed. Partial tables then have comparable rows.

        Raises:
            ConfigError: if a setting is invalid, or the budget is unknown.
        """
        return [
            Cell(
                row,
                seed,
                RunFolder(self.folder / f"{row.name}-{seed}"),
                resolve_cell(
                    self.experiment,
                    row,
                    seed,
                    benchmark=self.benchmark,
                    budget=self.budget,
                    sets=self.sets,
                ),
                self.kept.get(f"{row.name}-{seed}"),
            )
            for seed in self.seeds
            for row in self.rows
            if not row.shows
        ]

    def parts_shown_elsewhere(self) -> dict[str, list[str]]:
        """Map each row's name to the parts of its runs that other rows show."""
        by_source = defaultdict[str, list[str]](list)
        for row in self.rows:
            if row.shows:
                by_source[self.experiment.source_row_of(row, self.rows)].append(row.shows)
        return by_source


def choose_cells(
    experiment: Experiment,
    runs: Path,
    *,
    benchmark: str | None = None,
    budget: str | None = None,
    seeds: str | None = None,
    rows: tuple[str, ...] = (),
    sets: Sequence[str] = (),
    name: str | None = None,
    metric: str | None = None,
    records: Path | None = None,
) -> Chosen:
    """Return the user's choices, with the table's defaults filled in.

    The name of the folder includes benchmark and budget unless they are the table's defaults.
    ``records`` is a file with records of finished cells.

    Raises:
        ConfigError: if budget, row or seed is invalid, the name is not a valid folder name, or the
            file of records contains none of the cells.
        StoreError: if the file of records cannot be read.
    """
    size = find_budget(experiment, budget)
    if name is not None:
        check_folder_name(name)
    if metric is not None:
        experiment = experiment.model_copy(update={"metric": metric})
    usual = experiment.benchmarks[0]
    where = benchmark or usual
    parts = [experiment.name]
    parts += [where] if where != usual else []
    parts += [size] if size != experiment.budget else []
    chosen = Chosen(
        experiment,
        experiment.select_rows(rows),
        parse_seeds(seeds, experiment.seeds),
        where,
        size,
        runs / (name or "-".join(parts)),
        tuple(sets),
    )
    return chosen if records is None else _use_records(chosen, records)


def _use_records(chosen: Chosen, path: Path) -> Chosen:
    """Use the records in a file instead of runs.

    Raises:
        ConfigError: if the file is of another kind, or contains none of the chosen cells.
    """
    name = chosen.experiment.name
    if path.suffix != ENDING:
        raise ConfigError(
            f"--from needs a {ENDING} file of finished cells, got {path}. `coevo experiment {name} "
            f"--export {name}{ENDING}` writes such a file."
        )
    chosen = replace(chosen, kept=read_records(path))
    cells = chosen.cells()
    if cells and not any(cell.kept for cell in cells):
        there = ", ".join([*chosen.kept][:_MAX_LISTED]) + ", …" * (len(chosen.kept) > _MAX_LISTED)
        raise ConfigError(
            f"{path} contains none of the {len(cells)} cells of {name}, such as {cells[0].name}. "
            f"It contains: {there or 'nothing'}. Choose another file, --rows or --seeds."
        )
    return chosen


def find_budget(experiment: Experiment, budget: str | None) -> Size:
    """Return the budget with this name, or the table's default if no name is given.

    Raises:
        ConfigError: if the table has no such budget.
    """
    if budget is None:
        return experiment.budget
    for size in experiment.sizes:
        if size == budget:
            return size
    raise ConfigError(
        f"{experiment.name} has no budget {budget!r}. {suggest(budget, experiment.sizes)}"
    )


def resolve_cell(
    experiment: Experiment,
    row: Row,
    seed: int,
    *,
    benchmark: str,
    budget: Size,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Return the settings for one cell of an experiment table.

    Settings of the row that an arm may set, and method settings in the budget, apply only to the
    arm, so that D_0 is found in the same way in all cells. All others apply to the whole run.

    Raises:
        ConfigError: if a setting is invalid or the budget is unknown; the message names the row.
    """
    of_budget = experiment.budget_of(budget, benchmark)
    preset = row.at[budget].preset if budget in row.at else ""
    preset = preset.format(benchmark=benchmark) or of_budget.preset
    of_all = {**dict(flatten(of_budget.set)), **dict(flatten(experiment.settings))}
    arm = {key: value for key, value in of_all.items() if key.startswith("method.")}
    tree = {key: value for key, value in of_all.items() if key not in arm} | dict(flatten(row.run))
    for key, value in row.settings_at(budget).items():
        of_arm = key in KEYS or key.partition(".")[0] in (*SECTIONS, "method")
        (arm if of_arm else tree)[key] = value
    tree |= {
        **({"extends": preset} if preset else {}),
        "benchmark.name": benchmark,
        "name": f"{row.name}-{seed}",
        "seed": seed,
        "arms": [row.name],
        "arm": {row.name: {**({"method": row.method} if row.method else {}), "set": arm}},
    }
    try:
        return load_config(tree, sets=sets, environ=environ, origin=f"{experiment.name}.toml")
    except ConfigError as error:
        raise ConfigError(f"{experiment.name}, row {row.name}: {error}") from error


def settings_of_shared_start(config: RunConfig) -> dict[str, Any]:
    """Return the settings that must be equal in two runs that share a warm-up and first round."""
    settings = settings_affecting_result(config)
    return {name: value for name, value in settings.items() if name not in NAMED}


def settings_affecting_result(config: RunConfig) -> dict[str, Any]:
    """Return the settings that affect a run's result, omitting unused explorer settings."""
    settings: dict[str, Any] = redact_secrets(config.to_json())
    rest = {name: value for name, value in settings.items() if name not in BESIDE}
    explorers = (config.explorer, *(arm.explorer for arm in arm_configs(config).values()))
    if all(each.kind != "model" for each in explorers):
        explorer = rest["explorer"]
        rest["explorer"] = {key: explorer[key] for key in explorer if key not in OF_A_MODEL}
    return rest


def _describe_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the first three differences between two sets of settings, as text."""
    before, now = dict(flatten(there)), dict(flatten(here))
    texts = (
        f"{key} is {before.get(key)!r} there and {now.get(key)!r} here"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    )
    return "; ".join(islice(texts, 3))
