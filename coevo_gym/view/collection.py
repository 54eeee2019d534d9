"""Runs and evaluations whose data is cached until their files change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import Any, Literal, TypeVar

from coevo_gym.core.errors import CoevoError, StoreError
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.store.eval_folder import EvalFolder, EvalLine
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from coevo_gym.view.library import OF_TABLE, Library, folder_name
from coevo_gym.view.reader import ViewReader
from coevo_gym.view.refusals import Damaged, NotFound
from coevo_gym.view.safe import Censor, Reveal

T = TypeVar("T")
Line = Mapping[str, Any]
Stamps = tuple[tuple[int, int, int], ...]


def file_stamps(*files: Path) -> Stamps:
    """Return each file's modification time, size and inode, to detect changes."""
    states = []
    for file in files:
        try:
            stat = file.stat()
            states.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            states.append((-1, -1, -1))
    return tuple(states)


class RunCollection:
    """A thread-safe collection of the runs and evaluations that the viewer shows.

    Args:
        library: the runs and evaluations to show.
        reveal: the place where the verdicts on held-out tasks are shown; "" to withhold them.

    Attributes:
        library: the runs and evaluations to show.
        censor: filter that removes the secrets in this process's environment from responses.
    """

    def __init__(self, library: Library, reveal: Reveal = "") -> None:
        self.library, self._reveal = library, reveal
        self.censor = Censor.of_environment()
        self._lock = threading.Lock()
        self._runs: dict[Path, ShownRun] = {}
        self._evals: dict[Path, ShownEval] = {}

    def get_run(self, id: str) -> ShownRun:
        """Return the run with the given id.

        Raises:
            NotFound: if there is no such run.
        """
        return self._cache_run(id, self.library.get_run(id))

    def get_evaluation(self, id: str) -> ShownEval:
        """Return the evaluation with the given id.

        Raises:
            NotFound: if there is no such evaluation.
        """
        return self._cache_eval(id, self.library.get_evaluation(id))

    def runs(self) -> list[ShownRun]:
        """Return all runs."""
        return list(starmap(self._cache_run, self.library.runs().items()))

    def runs_of_table(self, id: str) -> list[ShownRun]:
        """Return the runs of the table with the given id, sorted by name.

        Raises:
            NotFound: if there is no such table.
        """
        table = self.library.get_table(id)
        return [self._cache_run(f"{id}{OF_TABLE}{run.path.name}", run) for run in table.runs()]

    def evals(self) -> list[ShownEval]:
        """Return all evaluations."""
        return list(starmap(self._cache_eval, self.library.evals().items()))

    def _cache_run(self, id: str, folder: RunFolder) -> ShownRun:
        with self._lock:
            return self._runs.setdefault(folder.path, ShownRun(id, folder, self._reveal))

    def _cache_eval(self, id: str, folder: EvalFolder) -> ShownEval:
        with self._lock:
            return self._evals.setdefault(folder.path, ShownEval(id, folder, self._reveal))


class ShownRun:
    """A run shown in the viewer.

    Attributes:
        id: id of the run, used in paths.
        folder: folder of the run.
        reveal: the place where the verdicts on held-out tasks are shown; "" to withhold them.
    """

    def __init__(self, id: str, folder: RunFolder, reveal: Reveal = "") -> None:
        self.id, self.folder, self.reveal = id, folder, reveal
        self._open = threading.local()
        self._kept: dict[str, tuple[object, Any]] = {}

    @property
    def name(self) -> str:
        """Return the display name: the folder's name, or ``TABLE/ROW-SEED``."""
        return _display_name(self.id, self.folder.path)

    @property
    def reader(self) -> ViewReader:
        """Return a reader for the run's database.

        Raises:
            Damaged: if the database cannot be read.
        """
        readers: list[ViewReader] | None = getattr(self._open, "readers", None)
        if readers:
            return readers[0]
        with raise_as_damaged():
            reader = ViewReader(self.folder.database)
        if readers is not None:
            readers.append(reader)
        return reader

    @contextmanager
    def reuse_reader(self) -> Iterator[None]:
        """Context manager that lets this thread use one reader instead of one per query."""
        outer = getattr(self._open, "readers", None)
        self._open.readers = [] if outer is None else outer
        try:
            yield
        finally:
            self._open.readers = outer

    def query_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query on the run's database.

        Raises:
            Damaged: if the database cannot be read.
        """
        with raise_as_damaged():
            return self.reader.query_rows(query, *values)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the run's manifest.

        Raises:
            Damaged: if the manifest cannot be read.
        """
        return self._read_manifest()[0]

    @property
    def config(self) -> RunConfig:
        """Return the run's settings.

        Raises:
            Damaged: if the settings cannot be read.
        """
        return self._read_manifest()[1]

    @property
    def metric_lines(self) -> Sequence[Line]:
        """Return the complete lines of the run's metrics file, in order.

        Raises:
            Damaged: if the file cannot be read.
        """

        def read() -> Sequence[Line]:
            with raise_as_damaged():
                return [line for line in read_lines(self.folder.metrics) if "event" in line]

        return self.get_or_make("lines", read, until=file_stamps(self.folder.metrics))

    def arm_metrics(self, arm: str, event: Literal["step", "eval"] = "step") -> dict[int, Line]:
        """Return the metrics of an arm's training steps or evaluations, keyed by step."""
        return {
            line["step"]: line
            for line in self.metric_lines
            if line["event"] == event and line.get("arm") == arm
        }

    @property
    def summary(self) -> dict[str, Any] | None:
        """Return the run's summary, or None if the run is not finished.

        Raises:
            Damaged: if the summary cannot be read.
        """
        if not self.folder.summary.is_file():
            return None
        with raise_as_damaged():
            data = read_json(self.folder.summary)
        if not isinstance(data, dict) or not isinstance(data.get("table"), list):
            raise Damaged(
                f"{self.folder.summary} contains no table. Run `coevo resume` to rewrite the file."
            )
        return data

    def require_arm(self, arm: str, others: Collection[str] = ()) -> None:
        """Check that an arm exists in the run.

        Args:
            arm: name of the arm.
            others: names of baselines that are also accepted.

        Raises:
            NotFound: if the run has no such arm.
        """
        arms = self.config.arms
        if arm not in arms and arm not in others:
            raise NotFound(f"{self.id} has no arm {arm[:60]!r}. Choose one of: {', '.join(arms)}.")

    def get_or_make(self, name: str, make: Callable[[], T], *, until: object = None) -> T:
        """Return the result of ``make()``, cached until the run's database changes.

        If ``until`` is given, the result is cached until this value changes instead.
        """
        database = self.folder.database
        log = database.with_name(f"{database.name}-wal")
        state = file_stamps(database, log) if until is None else until
        known = self._kept.get(name)
        if known is None or known[0] != state:
            known = self._kept[name] = (state, make())
        value: T = known[1]
        return value

    def _read_manifest(self) -> tuple[dict[str, Any], RunConfig]:
        with raise_as_damaged():
            return self.get_or_make(
                "manifest",
                lambda: read_manifest(self.folder),
                until=file_stamps(self.folder.manifest),
            )


class ShownEval:
    """An evaluation shown in the viewer.

    Attributes:
        id: id of the evaluation, used in paths.
        folder: folder of the evaluation.
        reveal: the place where the verdicts on held-out tasks are shown; "" to withhold them.
    """

    def __init__(self, id: str, folder: EvalFolder, reveal: Reveal = "") -> None:
        self.id, self.folder, self.reveal = id, folder, reveal
        self._known: tuple[object, dict[str, Any], dict[tuple[str, int], EvalLine]] | None = None

    @property
    def name(self) -> str:
        """Return the display name: the folder's name, or ``TABLE/CELL``."""
        return _display_name(self.id, self.folder.path)

    @property
    def config(self) -> dict[str, Any]:
        """Return all settings that the evaluation's results depend on.

        Raises:
            Damaged: if the settings cannot be read.
        """
        return self._read_config_and_results()[0]

    @property
    def episode_lines(self) -> dict[tuple[str, int], EvalLine]:
        """Return the episodes, keyed by task and sample, in order of completion.

        Raises:
            Damaged: if an episode cannot be read.
        """
        return self._read_config_and_results()[1]

    @property
    def reader(self) -> ViewReader:
        """Return a reader for the evaluation's episodes.

        Raises:
            Damaged: if the database cannot be read.
        """
        with raise_as_damaged():
            return ViewReader(self.folder.database)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Return the evaluation's summary, or None if the evaluation is not finished."""
        if not self.folder.summary.is_file():
            return None
        with raise_as_damaged():
            data = read_json(self.folder.summary)
        return data if isinstance(data, dict) else None

    def _read_config_and_results(self) -> tuple[dict[str, Any], dict[tuple[str, int], EvalLine]]:
        stamp = file_stamps(self.folder.config, self.folder.results)
        if self._known is None or self._known[0] != stamp:
            with raise_as_damaged():
                config = self.folder.read_config()
                missing = sorted({"policy", "benchmark", "split", "samples"} - config.keys())
                if missing:
                    raise StoreError(f"{self.folder.config} does not specify {missing[0]!r}.")
                self._known = (stamp, config, self.folder.read_results())
        return self._known[1:]


def _display_name(id: str, folder: Path) -> str:
    name, table = folder_name(folder), folder_name(folder.parent)
    return f"{table}/{name}" if id == f"{table}{OF_TABLE}{name}" else name


@contextmanager
def raise_as_damaged() -> Iterator[None]:
    """Context manager that converts read errors to :class:`Damaged`."""
    try:
        yield
    except CoevoError as error:
        raise Damaged(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:  # an unexpected format
        raise Damaged(f"Stored data cannot be read: {type(error).__name__}: {error}.") from error
