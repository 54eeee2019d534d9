"""The state and size of run, table and evaluation folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.task import FrozenDict, FrozenModel
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder, is_in_use, read_json
from coevo_gym.store.progress_file import WorkProgress, read_progress
from coevo_gym.store.reader import RunReader

State = Literal["running", "finished", "stopped", "damaged"]


def state_of_run(folder: RunFolder) -> tuple[State, str]:
    """Return a run's state and a description of any damage.

    Files are opened but not read completely, so a damaged row may be missed.
    """
    try:
        _, config = read_manifest(folder)
        stored = any((folder.checkpoints / arm).is_dir() for arm in config.arms)
        return _folder_state(folder, stored=stored), ""
    except StoreError as error:
        return "damaged", str(error)


def state_of_evaluation(folder: EvalFolder) -> tuple[State, str]:
    """Return an evaluation's state and a description of any damage."""
    try:
        folder.read_config()
        return _folder_state(folder, stored=folder.database.is_file()), ""
    except StoreError as error:
        return "damaged", str(error)


def _folder_state(folder: RunFolder | EvalFolder, *, stored: bool) -> State:
    """Return the state of a run or evaluation, assuming that its settings are readable.

    ``stored`` is True if the database must exist.
    """
    if is_in_use(folder.path):
        return "running"
    if stored:
        RunReader(folder.database)
    if not folder.summary.is_file():
        return "stopped"
    read_json(folder.summary)
    return "finished"


def size_of(path: Path) -> int:
    """Return the size in bytes of a file or folder, without following links."""
    if path.is_symlink() or not path.is_dir():
        return _file_size(path)
    return sum(
        _file_size(file) for file in path.rglob("*") if file.is_symlink() or not file.is_dir()
    )


def changed_at(folder: Path) -> str:
    """Return the time of the last write to a folder (UTC, ISO 8601), or "" if it has no files."""
    times = []
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # it was just deleted
            continue
    if not times:
        return ""
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it was just deleted
        return 0


class OnDisk(FrozenModel):
    """A folder on disk, with its state and size.

    Attributes:
        state: state of the folder.
        problem: description of the damage; "" if the folder is not damaged.
        size: size of the folder in bytes.
        changed: time of the last write, in UTC.
        progress: progress of the run or table in the folder; None if unknown.
        steps: for a run, saved learner steps by arm; arms without any are missing.
    """

    state: State
    problem: str = ""
    size: int
    changed: str
    progress: WorkProgress | None
    steps: Mapping[str, int] = FrozenDict()


class TableOfRuns(FrozenModel):
    """A table of runs on disk. It is ``running`` if any cell is, and ``finished`` if all cells are.

    Attributes:
        name: name of the table.
        path: path of the table's folder.
        cells: number of cells by state.
        on_disk: the state and size of the folder on disk.
    """

    name: str
    path: str
    cells: Mapping[str, int]
    on_disk: OnDisk


def inspect_run(folder: RunFolder, arms: Sequence[str]) -> OnDisk:
    """Determine a run's state, size and progress from its folder."""
    state, problem = state_of_run(folder)
    saved = {arm: Checkpoints(folder.checkpoints / arm).steps() for arm in arms}
    steps = {arm: numbers[0] for arm, numbers in saved.items() if numbers}
    return _inspect_folder(folder.path, state, problem, steps)


def inspect_evaluation(folder: EvalFolder) -> OnDisk:
    """Determine an evaluation's state, size and progress from its folder."""
    return _inspect_folder(folder.path, *state_of_evaluation(folder))


def _inspect_folder(
    path: Path, state: State, problem: str = "", steps: Mapping[str, int] = FrozenDict()
) -> OnDisk:
    return OnDisk(
        state=state,
        problem=problem,
        size=size_of(path),
        changed=changed_at(path),
        progress=read_progress(path),
        steps=steps,
    )


def list_tables() -> list[TableOfRuns]:
    """Return the tables under ``runs/``, sorted by name."""
    return [_inspect_table(folder) for folder in RunFolder.table_folders()]


def find_table(table: str) -> Path:
    """Return the folder of the table of runs or evaluations with this name.

    Raises:
        ConfigError: if there is no such table.
    """
    for root, of_table in ((RUNS, RunFolder.of_table), (EVALS, EvalFolder.of_table)):
        if of_table(root / table):
            return root / table
    folders = (*RunFolder.table_folders(), *EvalFolder.table_folders())
    names = ", ".join(folder.name for folder in folders) or "none"
    raise ConfigError(
        f"There is no table {table!r} in {RUNS}/ or {EVALS}/. Available tables: {names}."
    )


def preset_of(origins: Mapping[str, str]) -> str:
    """Return the preset or file that a run's settings come from, or "" if there is none."""
    for origin in origins.values():
        if origin.startswith("preset "):
            return origin.removeprefix("preset ")
        if origin.endswith(".toml"):
            return Path(origin).name
    return ""


def _inspect_table(folder: Path) -> TableOfRuns:
    states = Counter(state_of_run(run)[0] for run in RunFolder.of_table(folder))
    on_disk = _inspect_folder(folder, "finished" if set(states) == {"finished"} else "stopped")
    progress, state = on_disk.progress, on_disk.state
    if states["damaged"]:
        state = "damaged"
    if states["running"] or (progress is not None and progress.state == "running"):
        state = "running"
    inside = [path for path in (folder, *folder.glob("*/")) if path.is_dir()]
    changed = max(map(changed_at, inside))
    return TableOfRuns(
        name=folder.name,
        path=str(folder),
        cells=dict(sorted(states.items())),
        on_disk=on_disk.model_copy(update={"state": state, "changed": changed}),
    )
