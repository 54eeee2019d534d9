"""Runs and evaluations as the viewer holds them: what was read is kept until it has changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coevo_gym.config import RunConfig
from coevo_gym.core.errors import CoevoError, StoreError
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.eval_folder import EvalFolder, EvalLine
from coevo_gym.store.folder import RunFolder, read_json
from coevo_gym.web.view.index.index import Index
from coevo_gym.web.view.library import OF_TABLE, Library, name_of
from coevo_gym.web.view.reader import ViewReader
from coevo_gym.web.view.refusals import Damaged, NotFound
from coevo_gym.web.view.safe import Censor

Line = Mapping[str, Any]
Stamp = tuple[int, int, int]


class Shelf:
    """All that a viewer shows.

    Any thread may ask it.

    Args:
        library: which runs and evaluations.
        censor: takes secrets out of answers; None for one that knows those of the environment.
    """

    def __init__(self, library: Library, censor: Censor | None = None) -> None:
        self.library = library
        self.censor = censor or Censor.of_environment()
        self._lock = threading.Lock()
        self._runs: dict[Path, ShownRun] = {}
        self._evals: dict[Path, ShownEval] = {}

    def run(self, id: str) -> ShownRun:
        """The run of that id.

        Raises:
            NotFound: if there is none.
        """
        folder = self.library.run(id)
        with self._lock:
            return self._runs.setdefault(folder.path, ShownRun(id, folder))

    def evaluation(self, id: str) -> ShownEval:
        """The evaluation of that id.

        Raises:
            NotFound: if there is none.
        """
        folder = self.library.evaluation(id)
        with self._lock:
            return self._evals.setdefault(folder.path, ShownEval(id, folder))

    def runs(self) -> list[ShownRun]:
        """All runs."""
        return [self.run(id) for id in self.library.runs()]

    def evals(self) -> list[ShownEval]:
        """All evaluations."""
        return [self.evaluation(id) for id in self.library.evals()]

    def indexes(self) -> list[Index]:
        """The indexes that were asked for."""
        with self._lock:
            shown = list(self._runs.values())
        return [run.index for run in shown if run.indexed]


class ShownRun:
    """A run that is shown.

    Attributes:
        id: what paths call it.
        folder: where it lies.
        index: of its episodes, groups, tasks and drafts.
    """

    def __init__(self, id: str, folder: RunFolder) -> None:
        self.id, self.folder = id, folder
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._manifest: tuple[Stamp, dict[str, Any], RunConfig] | None = None
        self._lines = _Lines(folder.metrics)
        self._reader: ViewReader | None = None
        self._kept: dict[str, tuple[object, Any]] = {}

    @property
    def name(self) -> str:
        """What people call it: its folder's name, or ``TABLE/ROW-SEED``."""
        name, table = name_of(self.folder.path), name_of(self.folder.path.parent)
        return f"{table}/{name}" if self.id == f"{table}{OF_TABLE}{name}" else name

    @property
    def indexed(self) -> bool:
        """Whether its index was asked for."""
        return self._index is not None

    @property
    def index(self) -> Index:
        """It is made when it is first asked for."""
        with self._lock:
            self._index = self._index or Index(self.folder)
            return self._index

    @property
    def reader(self) -> ViewReader:
        """Reads its database.

        Raises:
            NotFound: if it has none yet.
            Damaged: if it cannot be read.
        """
        if self._reader is not None:
            return self._reader
        if not self.folder.database.is_file():
            raise NotFound(f"{self.folder.path} has stored nothing yet, or its run.db is missing.")
        with told_as_damaged():
            return ViewReader(self.folder.database)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Let all answers of a single-threaded caller share one reader."""
        self._reader = self.reader
        try:
            yield
        finally:
            self._reader = None

    @property
    def manifest(self) -> dict[str, Any]:
        """What was run, with what.

        Raises:
            Damaged: if it cannot be read.
        """
        return self._read()[0]

    @property
    def config(self) -> RunConfig:
        """The run's settings.

        Raises:
            Damaged: if they cannot be read.
        """
        return self._read()[1]

    @property
    def lines(self) -> Sequence[Line]:
        """What it has written down over time, in order."""
        return self._lines.read()

    @property
    def summary(self) -> dict[str, Any] | None:
        """How it ended; None if it is not over.

        Raises:
            Damaged: if that cannot be read.
        """
        if not self.folder.summary.is_file():
            return None
        with told_as_damaged():
            found = read_json(self.folder.summary)
        if not isinstance(found, dict) or not isinstance(found.get("table"), list):
            raise Damaged(f"{self.folder.summary} holds no table. `coevo resume` writes it anew.")
        return found

    def kept(self, name: str, make: Any) -> Any:
        """What ``make()`` gives, made anew only when the index has taken something in."""
        with told_as_damaged():
            revision = self.index.refresh()
        known = self._kept.get(name)
        if known is None or known[0] != revision:
            known = self._kept[name] = (revision, make())
        return known[1]

    def _read(self) -> tuple[dict[str, Any], RunConfig]:
        stamp = _stamp(self.folder.manifest)
        if self._manifest is None or self._manifest[0] != stamp:
            with told_as_damaged():
                self._manifest = (stamp, *read_manifest(self.folder))
        return self._manifest[1:]


class ShownEval:
    """An evaluation that is shown.

    Attributes:
        id: what paths call it.
        folder: where it lies.
    """

    def __init__(self, id: str, folder: EvalFolder) -> None:
        self.id, self.folder = id, folder
        self._known: tuple[object, dict[str, Any], dict[tuple[str, int], EvalLine]] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """All that its numbers depend on.

        Raises:
            Damaged: if that cannot be read.
        """
        return self._read()[0]

    @property
    def lines(self) -> dict[tuple[str, int], EvalLine]:
        """Its episodes by task and sample, in the order in which they ended.

        Raises:
            Damaged: if one cannot be read.
        """
        return self._read()[1]

    @property
    def reader(self) -> ViewReader:
        """Reads what happened in them.

        Raises:
            NotFound: if that is not there.
            Damaged: if it cannot be read.
        """
        if not self.folder.database.is_file():
            raise NotFound(f"{self.folder.database} is missing: it holds what happened.")
        with told_as_damaged():
            return ViewReader(self.folder.database)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Its numbers; None if it is not finished."""
        if not self.folder.summary.is_file():
            return None
        with told_as_damaged():
            found = read_json(self.folder.summary)
        return found if isinstance(found, dict) else None

    def _read(self) -> tuple[dict[str, Any], dict[tuple[str, int], EvalLine]]:
        stamp = (_stamp(self.folder.config), _stamp(self.folder.results))
        if self._known is None or self._known[0] != stamp:
            with told_as_damaged():
                config = self.folder.read_config()
                missing = sorted({"policy", "benchmark", "split", "samples"} - config.keys())
                if missing:
                    raise StoreError(f"{self.folder.config} does not say its {missing[0]}.")
                self._known = (stamp, config, self.folder.lines())
        return self._known[1:]


class _Lines:
    """A file of JSON lines that grows; what was read of it is not read again."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._lines: list[Line] = []
        self._inode, self._end = -1, 0

    def read(self) -> Sequence[Line]:
        """All whole lines; those that were cut short are passed over."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    self._read_on(file)
            except OSError:
                self._lines, self._inode, self._end = [], -1, 0
            return tuple(self._lines)

    def _read_on(self, file: Any) -> None:
        inode = _stamp(self._path)[2]
        size = file.seek(0, 2)
        if inode != self._inode or size < self._end:  # it was written anew
            self._lines, self._inode, self._end = [], inode, 0
        file.seek(self._end)
        whole, newline, _ = file.read(size - self._end).rpartition(b"\n")
        self._end += len(whole) + len(newline)
        for text in whole.split(b"\n"):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and "event" in line:
                self._lines.append(line)


@contextmanager
def told_as_damaged() -> Iterator[None]:
    """A scope in which what cannot be read of a run is told as such."""
    try:
        yield
    except CoevoError as error:
        raise Damaged(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:  # a file of another shape
        raise Damaged(f"It cannot be read: {type(error).__name__}: {error}.") from error


def _stamp(path: Path) -> Stamp:
    """Changes whenever a file is written."""
    try:
        stat = path.stat()
    except OSError:
        return (-1, -1, -1)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
