"""The runs, tables and evaluations that there are, as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.run.kept.state import (
    State,
    changed_at,
    size_of,
    state_of_evaluation,
    state_of_run,
)
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder, read_json, read_lines
from coevo_gym.store.progress import WorkProgress, read_progress


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is listed of a folder of any kind.

    Attributes:
        name: its name.
        path: its folder.
        state: how it stands.
        size: bytes of its folder.
        changed: when something was last written to it, in UTC.
        progress: how far its work is; None where nothing is told of it.
    """

    name: str
    path: str
    state: State
    size: int
    changed: str
    progress: WorkProgress | None = None


@dataclass(frozen=True, kw_only=True)
class RunRow(Row):
    """What is listed of a run; one of a table is named ``TABLE/CELL``.

    Attributes:
        problem: what is wrong with one that is damaged; "" of others.
        benchmark: what is practised; "" where that cannot be read, as all below.
        preset: the preset or file that it was begun with; "" for settings from Python.
        seed: of the run; -1 where that cannot be read.
        arms: names of its arms.
        steps: learner steps of each arm that are saved; an arm that has saved none is not there.
    """

    problem: str
    benchmark: str
    preset: str
    seed: int
    arms: tuple[str, ...]
    steps: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class TableOfRuns(Row):
    """What is listed of a table: ``running`` if a cell is, ``finished`` if all that there are are.

    Attributes:
        cells: how many of its cells are in which state.
    """

    cells: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class EvalRow(Row):
    """What is listed of an evaluation.

    Attributes:
        problem: what is wrong with one that is damaged; "" of others.
        source: the run or benchmark that was named.
        policy: what is evaluated.
        benchmark: what it plays.
        split: which tasks.
        done: episodes that came to an end.
        total: episodes that there are to be.
        success: share that succeeded; None before it is finished.
    """

    problem: str
    source: str
    policy: str
    benchmark: str
    split: str
    done: int
    total: int
    success: float | None


def runs() -> list[RunRow]:
    """The runs under ``runs/``, those of tables not among them, by name."""
    return [run_row(RunFolder(RUNS / name), name) for name in RunFolder.names()]


def tables() -> list[TableOfRuns]:
    """The tables under ``runs/``, by name."""
    return [_table(folder) for folder in RunFolder.tables()]


def cells(table: str) -> list[RunRow]:
    """The cells of a table, by name.

    Raises:
        ConfigError: if there is no such table.
    """
    found = RunFolder.of_table(RUNS / table)
    if not found:
        names = ", ".join(folder.name for folder in RunFolder.tables()) or "none"
        raise ConfigError(f"There is no table {table!r} in {RUNS}/. Tables here: {names}.")
    return [run_row(folder, f"{table}/{folder.path.name}") for folder in found]


def evaluations() -> list[EvalRow]:
    """The evaluations under ``evals/``, by name."""
    return [_eval_row(EvalFolder(EVALS / name)) for name in EvalFolder.names()]


def run_row(folder: RunFolder, name: str) -> RunRow:
    """What is listed of one run."""
    state, problem = state_of_run(folder)
    known: dict[str, Any] = {"benchmark": "", "preset": "", "seed": -1, "arms": ()}
    try:
        manifest, config = read_manifest(folder)
    except StoreError:
        pass  # the state says so
    else:
        known = {
            "benchmark": config.benchmark.name,
            "preset": preset_of(manifest.get("origins", {})),
            "seed": config.seed,
            "arms": config.arms,
        }
    saved = {arm: Checkpoints(folder.checkpoints / arm).steps() for arm in known["arms"]}
    return RunRow(
        name=name,
        path=str(folder.path),
        state=state,
        problem=problem,
        **known,
        steps={arm: steps[0] for arm, steps in saved.items() if steps},
        size=size_of(folder.path),
        changed=changed_at(folder.path),
        progress=read_progress(folder.path),
    )


def preset_of(origins: Mapping[str, str]) -> str:
    """The preset or file that a run's settings come from; "" if they are from elsewhere."""
    for origin in origins.values():
        if origin.startswith("preset "):
            return origin.removeprefix("preset ")
        if origin.endswith(".toml"):
            return Path(origin).name
    return ""


def _table(folder: Path) -> TableOfRuns:
    states = Counter(state_of_run(run)[0] for run in RunFolder.of_table(folder))
    progress = read_progress(folder)
    state: State = "finished" if set(states) == {"finished"} else "stopped"
    if states["damaged"]:
        state = "damaged"
    if states["running"] or (progress is not None and progress.state == "running"):
        state = "running"
    return TableOfRuns(
        name=folder.name,
        path=str(folder),
        state=state,
        cells=dict(sorted(states.items())),
        size=size_of(folder),
        changed=max(changed_at(path) for path in (folder, *folder.glob("*/")) if path.is_dir()),
        progress=progress,
    )


def _eval_row(folder: EvalFolder) -> EvalRow:
    state, problem = state_of_evaluation(folder)
    config: dict[str, Any] = {}
    success = None
    if state != "damaged":
        config = folder.read_config()
        if folder.summary.is_file():
            success = read_json(folder.summary).get("success")
    return EvalRow(
        name=folder.path.name,
        path=str(folder.path),
        state=state,
        problem=problem,
        **{key: str(config.get(key, "")) for key in ("source", "policy", "benchmark", "split")},
        done=len(read_lines(folder.results)),
        total=int(config.get("n_tasks", 0)) * int(config.get("samples", 1)),
        success=success,
        size=size_of(folder.path),
        changed=changed_at(folder.path),
        progress=read_progress(folder.path),
    )
