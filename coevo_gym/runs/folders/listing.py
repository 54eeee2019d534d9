"""Rows for listings of runs, tables and evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder, in_use, read_json, read_lines
from coevo_gym.store.progress import WorkProgress, read_progress
from coevo_gym.store.reader import RunReader

State = Literal["running", "finished", "stopped", "damaged"]


def state_of_run(folder: RunFolder) -> tuple[State, str]:
    """Return the state of a run, and a description of its damage or "".

    Files are opened but not read completely, so a damaged row may be missed.
    """
    try:
        _, config = read_manifest(folder)
        stored = any((folder.checkpoints / arm).is_dir() for arm in config.arms)
        return _state(folder, stored=stored), ""
    except StoreError as error:
        return "damaged", str(error)


def state_of_evaluation(folder: EvalFolder) -> tuple[State, str]:
    """Return the state of an evaluation, and a description of its damage or ""."""
    try:
        folder.read_config()
        return _state(folder, stored=folder.database.is_file()), ""
    except StoreError as error:
        return "damaged", str(error)


def _state(folder: RunFolder | EvalFolder, *, stored: bool) -> State:
    """Return the state of a folder with readable settings.

    ``stored`` is True if the database must exist.
    """
    if in_use(folder.path):
        return "running"
    if stored:
        RunReader(folder.database)
    if not folder.summary.is_file():
        return "stopped"
    read_json(folder.summary)
    return "finished"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder, without following links."""
    if path.is_symlink() or not path.is_dir():
        return _bytes(path)
    return sum(_bytes(file) for file in path.rglob("*") if file.is_symlink() or not file.is_dir())


def changed_at(folder: Path) -> str:
    """Return the time of the last write in a folder, in UTC (ISO 8601); "" if it is empty."""
    times = []
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # it has just gone
            continue
    if not times:
        return ""
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it has just gone
        return 0


@dataclass(frozen=True, kw_only=True)
class ListedRow:
    """Common columns of all rows.

    Attributes:
        size: size of its folder in bytes.
        changed: time of the last write, in UTC.
        progress: progress of its work; None if unknown.
    """

    name: str
    path: str
    state: State
    size: int
    changed: str
    progress: WorkProgress | None = None


@dataclass(frozen=True, kw_only=True)
class ListedRun(ListedRow):
    """Row of a run; a cell of a table is named ``TABLE/CELL``.

    Attributes:
        problem: description of the damage; "" if the run is not damaged.
        benchmark: name of the benchmark; this and the following are empty if unreadable.
        preset: its preset or settings file; "" for settings from Python.
        seed: its seed; -1 if unreadable.
        arms: names of its arms.
        steps: saved learner steps by arm; arms without any are missing.
    """

    problem: str
    benchmark: str
    preset: str
    seed: int
    arms: tuple[str, ...]
    steps: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class TableOfRuns(ListedRow):
    """Row of a table: ``running`` if a cell is, ``finished`` if all existing cells are.

    Attributes:
        cells: number of cells by state.
    """

    cells: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ListedEval(ListedRow):
    """Row of an evaluation.

    Attributes:
        problem: description of the damage; "" if the evaluation is not damaged.
        source: its run or benchmark.
        policy: name of the policy.
        benchmark: name of the benchmark.
        split: split of the tasks.
        done: number of finished episodes.
        total: number of episodes.
        success: share of successes; None before the evaluation is finished.
    """

    problem: str
    source: str
    policy: str
    benchmark: str
    split: str
    done: int
    total: int
    success: float | None


def runs() -> list[ListedRun]:
    """Return the runs under ``runs/`` by name, without the cells of tables."""
    return [run_row(RunFolder(RUNS / name), name) for name in RunFolder.names()]


def tables() -> list[TableOfRuns]:
    """Return the tables under ``runs/`` by name."""
    return [_table(folder) for folder in RunFolder.tables()]


def cells(table: str) -> list[ListedRun]:
    """Return the cells of a table by name.

    Raises:
        ConfigError: if there is no such table.
    """
    found = RunFolder.of_table(RUNS / table)
    if not found:
        names = ", ".join(folder.name for folder in RunFolder.tables()) or "none"
        raise ConfigError(f"There is no table {table!r} in {RUNS}/. Tables here: {names}.")
    return [run_row(folder, f"{table}/{folder.path.name}") for folder in found]


def evaluations() -> list[ListedEval]:
    """Return the evaluations under ``evals/`` by name."""
    return [_eval_row(EvalFolder(EVALS / name)) for name in EvalFolder.names()]


def run_row(folder: RunFolder, name: str) -> ListedRun:
    """Return the row of a run."""
    state, problem = state_of_run(folder)
    known: dict[str, Any] = {"benchmark": "", "preset": "", "seed": -1, "arms": ()}
    try:
        manifest, config = read_manifest(folder)
    except StoreError:
        pass  # the state reports it
    else:
        known = {
            "benchmark": config.benchmark.name,
            "preset": preset_of(manifest.get("origins", {})),
            "seed": config.seed,
            "arms": config.arms,
        }
    saved = {arm: Checkpoints(folder.checkpoints / arm).steps() for arm in known["arms"]}
    return ListedRun(
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
    """Return the preset or file behind a run's settings; "" if there is none."""
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


def _eval_row(folder: EvalFolder) -> ListedEval:
    state, problem = state_of_evaluation(folder)
    config: dict[str, Any] = {}
    success = None
    if state != "damaged":
        config = folder.read_config()
        if folder.summary.is_file():
            success = read_json(folder.summary).get("success")
    return ListedEval(
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
