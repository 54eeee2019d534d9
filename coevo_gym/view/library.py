"""The runs and evaluations that a viewer shows, keyed by the ids used in paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.evals.sides import find_run_or_eval
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder
from coevo_gym.view.refusals import NotFound

OF_TABLE = "~"
"""The separator between the table's and the run's name in an id. Paths can contain it unquoted."""

MAX_OFFERED = 12
"""Maximum number of existing ids that the error for an unknown id suggests."""

TABLE_FILE = "table.json"


@dataclass(frozen=True)
class TableFolder:
    """The folder of a table: its runs or evaluations, its files, or both.

    Attributes:
        path: path of the folder.
    """

    path: Path

    @property
    def file(self) -> Path:
        """Return the path of the table as JSON; that of runs is written when its cells have run."""
        return self.path / TABLE_FILE

    def runs(self) -> list[RunFolder]:
        """Return the table's runs, sorted by name."""
        return RunFolder.of_table(self.path)


Folder = TypeVar("Folder", RunFolder, EvalFolder, TableFolder)


class Library:
    """The runs and evaluations shown in a viewer. Ids are never converted to file paths.

    Args:
        sources: names or paths of runs, evaluations, or tables of either; empty for all of
            ``runs/`` and ``evals/``. Runs and evaluations created later in these folders are
            included.

    Raises:
        ConfigError: if a name does not exist or is ambiguous.

    Example:
        >>> Library(["quickstart"]).runs()  # doctest: +SKIP
        {'quickstart': RunFolder(path=PosixPath('runs/quickstart'))}
    """

    def __init__(self, sources: Sequence[str | RunFolder | EvalFolder | TableFolder] = ()) -> None:
        folders = [_find_source(one) if isinstance(one, str) else one for one in sources]
        self._all = not folders
        self._runs = [folder for folder in folders if isinstance(folder, RunFolder)]
        self._evals = [folder for folder in folders if isinstance(folder, EvalFolder)]
        self._tables = [folder for folder in folders if isinstance(folder, TableFolder)]
        self._eval_tables = [folder for folder in folders if isinstance(folder, Path)]

    @property
    def home(self) -> str:
        """Return the path of the only run, table or evaluation, or "" if several are shown."""
        if self._all:
            return ""
        runs = _name_folders((folder_name(run.path), run) for run in self._runs)
        evals = _name_folders((folder_name(one.path), one) for one in self._evals)
        places = [
            *(f"tables/{id}" for id in self.tables()),
            *(f"runs/{id}" for id in runs),
            *(f"eval-tables/{id}" for id in self.eval_tables()),
            *(f"evals/{id}" for id in evals),
        ]
        return places[0] if len(places) == 1 else ""

    def runs(self) -> Mapping[str, RunFolder]:
        """Return all runs, keyed by id, including runs whose manifest cannot be read.

        A run of a table has the id ``TABLE~ROW-SEED``.
        """
        runs = self._runs
        if self._all:
            runs = [RunFolder(RUNS / name) for name in RunFolder.names()]
        pairs = [(folder_name(run.path), run) for run in runs]
        for id, table in self.tables().items():
            pairs += [(f"{id}{OF_TABLE}{run.path.name}", run) for run in table.runs()]
        return _name_folders(pairs)

    def tables(self) -> Mapping[str, TableFolder]:
        """Return the folders of all tables, keyed by id."""
        tables = self._tables
        if self._all:
            with_file = {path.parent for path in RUNS.glob(f"*/{TABLE_FILE}")}
            paths = sorted({*RunFolder.table_folders(), *with_file})
            tables = [TableFolder(path) for path in paths]
        return _name_folders((folder_name(table.path), table) for table in tables)

    def eval_tables(self) -> Mapping[str, TableFolder]:
        """Return the folders of the tables that ``coevo eval FILE.toml`` wrote, keyed by id."""
        paths = self._eval_tables
        if self._all:
            paths = sorted(path.parent for path in EVALS.glob(f"*/{TABLE_FILE}"))
        tables = [table for table in map(TableFolder, paths) if table.file.is_file()]
        return _name_folders((folder_name(table.path), table) for table in tables)

    def evals(self) -> Mapping[str, EvalFolder]:
        """Return all evaluations, keyed by id. One of a table has the id ``TABLE~CELL``."""
        evals, tables = self._evals, self._eval_tables
        if self._all:
            evals = [EvalFolder(EVALS / name) for name in EvalFolder.names()]
            tables = EvalFolder.table_folders()
        pairs = [(folder_name(evaluation.path), evaluation) for evaluation in evals]
        for table in tables:
            before = folder_name(table) + OF_TABLE
            pairs += [(before + one.path.name, one) for one in EvalFolder.of_table(table)]
        return _name_folders(pairs)

    def get_run(self, id: str) -> RunFolder:
        """Return the run with the given id.

        Raises:
            NotFound: if there is no such run.
        """
        return _require_folder("run", id, "runs", self.runs())

    def get_evaluation(self, id: str) -> EvalFolder:
        """Return the evaluation with the given id.

        Raises:
            NotFound: if there is no such evaluation.
        """
        return _require_folder("evaluation", id, "evals", self.evals())

    def get_table(self, id: str) -> TableFolder:
        """Return the table of runs with the given id.

        Raises:
            NotFound: if there is no such table.
        """
        return _require_folder("table", id, "tables", self.tables())

    def get_eval_table(self, id: str) -> TableFolder:
        """Return the table of evaluations with the given id.

        Raises:
            NotFound: if there is no such table.
        """
        return _require_folder("table", id, "eval-tables", self.eval_tables())


def _find_source(name: str) -> RunFolder | EvalFolder | TableFolder | Path:
    """Find a run, an evaluation or a table of runs. For a table of evaluations, return its path.

    Raises:
        ConfigError: if there is none, or the name is ambiguous.
    """
    if name and not (RunFolder.find(name) or EvalFolder.find(name)):
        of_evals = [
            path for path in dict.fromkeys((EVALS / name, Path(name))) if EvalFolder.of_table(path)
        ]
        tables = [
            table
            for table in map(TableFolder, dict.fromkeys((RUNS / name, Path(name))))
            if (table.runs() or table.file.is_file()) and table.path not in of_evals
        ]
        paths = [*(table.path for table in tables), *of_evals]
        if len(paths) > 1:
            raise ConfigError(f"{name} is ambiguous. Use {' or '.join(map(str, paths))}.")
        if paths:
            return tables[0] if tables else of_evals[0]
    return find_run_or_eval(name)


def folder_name(folder: Path) -> str:
    """Return a folder's name, even for a relative path such as ``.``."""
    return folder.name if folder.name not in ("", "..") else folder.resolve().name


def _name_folders(folders: Iterable[tuple[str, Folder]]) -> dict[str, Folder]:
    """Return the distinct folders, keyed by unique names. Repeated names get a number.

    A cell that is a link to another table's identical cell is shown in both tables.
    """
    by_name: dict[str, Folder] = {}
    seen: set[Path] = set()
    for name, folder in folders:
        path = folder.path.resolve()
        if OF_TABLE in name and folder.path.is_symlink():
            path = folder.path.absolute()
        if path in seen:
            continue
        seen.add(path)
        id, number = name, 2
        while id in by_name:
            id, number = f"{name}~{number}", number + 1
        by_name[id] = folder
    return by_name


def _require_folder(noun: str, id: str, root: str, there: Mapping[str, Folder]) -> Folder:
    """Return the folder with the given id. The error for an unknown id suggests known ids."""
    if id in there:
        return there[id]
    close: list[str] = get_close_matches(id, there, n=MAX_OFFERED)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    offered = [*close, *(name for name in there if name not in close)][:MAX_OFFERED]
    message = f"There is no {noun} {id[:100]!r} here.{meant}"
    raise NotFound(message, [f"{root}/{name}" for name in offered])
