"""The cells of a table: a run for each row and seed, what it depends on, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coevo_gym.config import Resolved, RunConfig, arm_configs, load_config
from coevo_gym.config.arms import KEYS, SECTIONS
from coevo_gym.config.keys import flat
from coevo_gym.core.errors import ConfigError
from coevo_gym.experiments.definition import Experiment, Row, Size
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.secrets import without_secrets

State = Literal["finished", "cut", "new"]
BESIDE = ("sinks",)
"""Settings that change nothing of a run."""
OF_A_MODEL = ("history_turns", "max_action_tokens", "thinking")
"""Settings of an explorer that change nothing unless it is a model."""
NAMED = ("name", "arms", "arm")
"""Settings in which cells that share their start may differ: which arm they are."""


@dataclass(frozen=True)
class Cell:
    """One arm from one seed.

    Attributes:
        row: the row.
        seed: of its run.
        folder: where that is.
        resolved: its settings.
    """

    row: Row
    seed: int
    folder: RunFolder
    resolved: Resolved

    @property
    def config(self) -> RunConfig:
        """Its settings, as a tree."""
        return self.resolved.config

    @property
    def state(self) -> State:
        """How far it is.

        Raises:
            ConfigError: if what is there was run with other settings.
            StoreError: if what is there cannot be read.
        """
        if not self.folder.manifest.is_file():
            return "new"
        there, here = _settings(read_manifest(self.folder)[1]), _settings(self.config)
        if there != here:
            raise ConfigError(
                f"{self.folder.path} was run with other settings: {_differences(there, here)}. "
                "Choose another --name for a table with these, or delete that folder."
            )
        return "finished" if self.folder.summary.is_file() else "cut"


@dataclass
class Counts:
    """What there was to do.

    Attributes:
        there: cells that were finished before.
        resumed: cells that had been cut, and went on.
        new: cells that were begun.
    """

    there: int = 0
    resumed: int = 0
    new: int = 0

    def __str__(self) -> str:
        return f"{self.new} new cells, {self.resumed} resumed, {self.there} were there"


def cells_of(
    experiment: Experiment,
    rows: Sequence[Row],
    seeds: Sequence[int],
    folder: Path,
    *,
    benchmark: str,
    budget: Size,
    sets: Sequence[str] = (),
) -> list[Cell]:
    """The cells of some rows, seed by seed, so that a table that is cut short holds pairs.

    Args:
        experiment: the table.
        rows: of it.
        seeds: of each row.
        folder: where the runs lie.
        benchmark: what is practised.
        budget: how much a cell may take.
        sets: settings over all others, ``"section.key=value"`` each.

    Raises:
        ConfigError: if a setting is wrong, or there is no such budget.
    """
    return [
        Cell(
            row,
            seed,
            RunFolder(folder / f"{row.key}-{seed}"),
            resolve(experiment, row, seed, benchmark=benchmark, budget=budget, sets=sets),
        )
        for seed in seeds
        for row in rows
        if not row.shows
    ]


def resolve(
    experiment: Experiment,
    row: Row,
    seed: int,
    *,
    benchmark: str,
    budget: Size,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """The settings of a cell.

    What an arm may set is the arm's, so that D_0 is looked for as in all other cells; the rest is
    the whole run's.

    Raises:
        ConfigError: naming the row, if a setting is wrong or there is no such budget.
    """
    of_budget = experiment.budget_of(budget, benchmark)
    preset = row.at[budget].preset if budget in row.at else ""
    preset = preset.format(benchmark=benchmark) or of_budget.preset
    arm: dict[str, Any] = {}
    tree = {**dict(flat(of_budget.set)), **dict(flat(experiment.settings))}
    tree |= dict(flat(row.run))
    for key, value in row.sets_at(budget).items():
        (arm if _is_of_an_arm(key) else tree)[key] = value
    tree |= {
        **({"extends": preset} if preset else {}),
        "benchmark.name": benchmark,
        "name": f"{row.key}-{seed}",
        "seed": seed,
        "arms": [row.name],
        "arm": {row.name: {**({"method": row.method} if row.method else {}), "set": arm}},
    }
    try:
        return load_config(tree, sets=sets, environ=environ)
    except ConfigError as error:
        raise ConfigError(f"{experiment.name}, row {row.name}: {error}") from error


def shared(config: RunConfig) -> dict[str, Any]:
    """What the start of a run depends on: all settings but which arm it is."""
    settings = _settings(config)
    return {name: value for name, value in settings.items() if name not in NAMED}


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that a cell depends on; how a model would explore only if one does."""
    found: dict[str, Any] = without_secrets(config.to_json())
    kept = {name: value for name, value in found.items() if name not in BESIDE}
    explorers = (config.explorer, *(arm.explorer for arm in arm_configs(config).values()))
    if all(each.kind != "model" for each in explorers):
        explorer = kept["explorer"]
        kept["explorer"] = {key: explorer[key] for key in explorer if key not in OF_A_MODEL}
    return kept


def _is_of_an_arm(key: str) -> bool:
    return key.partition(".")[0] in (*SECTIONS, "method") or key in KEYS


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first settings that differ, in words."""
    return "; ".join(list(_differing(dict(flat(there)), dict(flat(here))))[:3])


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*there, *here]):
        if there.get(key) != here.get(key):
            yield f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
