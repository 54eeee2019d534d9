"""Reports and exports: collect and pack the responses, then write them into or next to the page.

A report is the export of one run without episodes and walks, small enough to keep with every run.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.waiting import only_looking
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.folder import RunFolder, storing, write_atomic
from coevo_gym.store.reader import RunReader
from coevo_gym.web.shell import STATIC
from coevo_gym.web.view.answers.runs import run_detail
from coevo_gym.web.view.api import about
from coevo_gym.web.view.export.curve import picture
from coevo_gym.web.view.export.gathering import Response, answers, page_of, pages, read_all
from coevo_gym.web.view.export.packing import DataFile, lists
from coevo_gym.web.view.export.pages import beside, copy_static, exported, one_file
from coevo_gym.web.view.export.plain import plain_pages, success_curve
from coevo_gym.web.view.library import Library
from coevo_gym.web.view.refusals import Refusal
from coevo_gym.web.view.shelf import Shelf

MOST_BYTES = 10_000_000
"""Maximum size of a single-file export in bytes, small enough to send by mail."""
REPORT_BYTES = 1_400_000
"""Size of a report in bytes up to which it contains pages of single tasks."""
MOST_UNPACKED = 36_000_000
"""Maximum uncompressed data of a single file in bytes, which a browser unpacks at once."""
_RESERVE = 150_000
"""Bytes reserved for the compressor's buffer and the final entries."""
PART_BYTES = 2_000_000
"""Uncompressed data per file in a folder export, in bytes."""
WITHOUT_EPISODES = (
    "What was done in evaluation episodes is left out, because it shows how held-out tasks are "
    "solved. --with-episodes puts it in; such files must not be trained on."
)
NOT_IN_REPORT = ("trajectories", "groups/", "drafts/", "evaluations", "evals", "side", "search")
"""Kinds of pages that a report lacks; with a slash, the pages of single items."""
_PICTURE = (760.0, 320.0)


@dataclass
class Written:
    """The result of an export.

    Attributes:
        page: the file to open.
        bytes: total size of all files.
        left_out: sentences that list the omitted parts.
    """

    page: Path
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)

    @property
    def megabytes(self) -> float:
        """Return the total size in megabytes."""
        return self.bytes / 1e6


def export_pages(
    library: Library,
    target: Path,
    *,
    episodes: bool = False,
    most_bytes: int = MOST_BYTES,
    tell: Callable[[str], object] = lambda now: None,
) -> Written:
    """Write the pages of runs and evaluations to files that open without a server.

    Args:
        library: the runs and evaluations to export.
        target: a file that ends in ``.html``, or a folder that is new or contains an export.
        episodes: include the steps of evaluation episodes on held-out tasks.
        most_bytes: maximum size of a single file; a folder has no limit.
        tell: callback for progress messages.

    Raises:
        ConfigError: if the target is not writable, or there is nothing to export.
        StoreError: if writing fails; existing files are kept.
    """
    if not library.runs() and not library.evals():
        raise ConfigError(
            "Nothing to export: there are no runs in runs/ and no evaluations in evals/."
        )
    as_file = _is_file(target)
    shelf = Shelf(library)
    tell("reading episodes")
    read_all(shelf)
    export = _Export(shelf, held_out=episodes, tell=tell)
    with ExitStack() as reading:
        for run in shelf.runs():
            reading.enter_context(run.kept_open())
        return export.to_file(target, most_bytes) if as_file else export.to_folder(target)


def write_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write a run's report, by default into its folder, and return its path.

    The report of a running run shows the data so far. The same data gives the same bytes.

    Args:
        folder: folder of the run.
        path: file to write.

    Raises:
        StoreError: if one of the run's files is missing or damaged, or writing fails.
    """
    path = path or folder.report
    with _opened(folder) as shelf:
        return _Export(shelf, report=True).to_file(path, MOST_BYTES).page


def write_picture(folder: RunFolder, path: Path) -> None:
    """Write the success of a run's arms over env steps as a standalone SVG.

    Raises:
        StoreError: as in :func:`write_report`.
    """
    with _opened(folder) as shelf:
        detail = run_detail(shelf.runs()[0])
        curve = success_curve(detail, _PICTURE)
        heading = (detail.name, *wrap(detail.headline, 110))
        text = shelf.censor.clean(picture([curve] if curve else [], heading, _PICTURE))
    write_atomic(path, text.encode("utf-8", "replace"))


@contextmanager
def _opened(folder: RunFolder) -> Iterator[Shelf]:
    """Open a run that must be complete enough for a report; a refusal becomes a StoreError."""
    read_manifest(folder)
    RunReader(folder.database)
    if not folder.metrics.is_file():
        raise StoreError(
            f"{folder.metrics}, with the run's metrics over time, is missing. Restore it, "
            "or train again with --overwrite."
        )
    shelf = Shelf(Library([folder]))
    try:
        with only_looking(), shelf.runs()[0].kept_open():
            run_detail(shelf.runs()[0])  # an export would skip a damaged run
            yield shelf
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal


class _Export:
    """The writer of all pages.

    Args:
        shelf: the runs and evaluations.
        held_out: include the steps of evaluation episodes on held-out tasks.
        report: leave out episodes and walks, and everything else that does not fit.
        tell: callback for progress messages.
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        held_out: bool = False,
        report: bool = False,
        tell: Callable[[str], object] = lambda now: None,
    ) -> None:
        self._shelf, self._held_out, self._report, self._tell = shelf, held_out, report, tell
        names = [run.name for run in shelf.runs()]
        self._page = exported(
            (STATIC / "index.html").read_text(encoding="utf-8"),
            title=names[0] if len(names) == 1 else "coevo view",
            plain="".join(plain_pages(shelf)),
            home=shelf.library.home,
            without=NOT_IN_REPORT if report else (),
        )
        evals = any(shown.folder.results.is_file() for shown in shelf.evals())
        self._left_out = [WITHOUT_EPISODES] if evals and not held_out else []
        if report:
            self._left_out = [f"Episodes and walks are not in a report: coevo view {names[0]}"]
        self._written = 0

    def to_file(self, target: Path, most_bytes: int) -> Written:
        """Write all lists into one file, with as many pages as fit."""
        part, folder = DataFile(self._shelf.censor), target.with_suffix("")
        empty = len(one_file(self._page, STATIC, "").encode("utf-8", "replace"))
        room = most_bytes - empty - _RESERVE
        for told in answers(self._shelf, episodes=not self._report):
            if not self._add(part, told, room - part.packed if self._report else math.inf):
                self._left_out.append(f"{told.path} is too large for this file.")
            if part.packed > room and not self._report:
                raise ConfigError(
                    f"The lists alone exceed the {most_bytes / 1e6:.0f} MB limit of a single file. "
                    f"Export to a folder: --export {folder}"
                )
        if self._report:
            room = REPORT_BYTES - empty - _RESERVE
        wanted, there, full = Counter[tuple[str, str]](), Counter[tuple[str, str]](), False
        for page in pages(self._shelf, held_out=self._held_out, episodes=not self._report):
            wanted[page.of, page.kind] += 1
            if full or not (found := page_of(self._shelf, page.path, episodes=not self._report)):
                continue
            added = self._add(part, found, room - part.packed)
            there[page.of, page.kind] += added
            full = not added or part.size > MOST_UNPACKED
        all_of = f"coevo view {folder.parent.name}" if self._report else f"--export {folder}"
        for (of, kind), n in wanted.items():
            if (kept := there[of, kind]) < n:
                self._left_out.append(
                    f"{kept:,} of {n:,} {kind} of {of} have their pages in this file, the latest "
                    f"ones. All of them: {all_of}"
                )
        self._add_about(part)
        data = part.to_text(lists=lists(), left_out=self._left_out)
        whole = one_file(self._page, STATIC, data).encode("utf-8", "replace")
        write_atomic(target, whole)
        return Written(target, len(whole), self._left_out)

    def to_folder(self, target: Path) -> Written:
        """Write pages and separate data files that the pages load on demand."""
        scratch = target.with_name(f".{target.name}.part")
        with storing(target):
            shutil.rmtree(scratch, ignore_errors=True)  # left over from a killed process
            (scratch / "data").mkdir(parents=True)
            try:
                size = self._fill(scratch)
                shutil.rmtree(target, ignore_errors=True)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Written(target / "index.html", size, self._left_out)

    def _fill(self, folder: Path) -> int:
        files = dict[str, str]()
        for number, part in enumerate(self._parts()):
            name = f"part-{number}"
            files |= dict.fromkeys(part.paths, name)
            text = part.to_text()
            _write(folder / "data" / f"{name}.js", f'coevo.takeExport("{name}", "{text}");\n')
        index = DataFile(self._shelf.censor)
        self._add_about(index)
        text = index.to_text(files=files, lists=lists(), left_out=self._left_out)
        _write(folder / "data" / "index.js", f'window.coevoExport = "{text}";\n')
        _write(folder / "index.html", beside(self._page))
        copy_static(self._page, STATIC, folder)
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def _parts(self) -> Iterator[DataFile]:
        part = DataFile(self._shelf.censor)
        for told in self._all():
            self._add(part, told)
            if part.size > PART_BYTES:
                yield part
                part = DataFile(self._shelf.censor)
        if part.paths:
            yield part

    def _all(self) -> Iterator[Response]:
        yield from answers(self._shelf)
        for page in pages(self._shelf, held_out=self._held_out):
            if told := page_of(self._shelf, page.path):
                yield told

    def _add(self, part: DataFile, told: Response, room: float = math.inf) -> bool:
        self._written += 1
        if self._written % 1000 == 0:
            self._tell(f"{self._written:,} pages written")
        return part.add(told.path, told.value, room)

    def _add_about(self, part: DataFile) -> None:
        now = None if self._report else datetime.now(UTC).isoformat(timespec="seconds")
        told = about(self._shelf).model_copy(
            update={"exported": True, "made_at": now, "left_out": tuple(self._left_out)}
        )
        part.add("about", told.model_dump(mode="json"))


def _is_file(target: Path) -> bool:
    """Return True if the export target is a single file, False for a folder.

    Raises:
        ConfigError: if the target can be neither a file nor a folder.
    """
    if target.suffix.lower() in (".html", ".htm"):
        if target.is_dir() or not target.parent.is_dir():
            raise ConfigError(f"Cannot write to {target}. Name a file in an existing folder.")
        return True
    if target.is_file() or target.suffix.lower() in (".json", ".zip", ".txt", ".pdf"):
        raise ConfigError(
            f"{target} is neither a file that ends in .html nor a folder. For example: --export "
            f"{target.stem}.html, or --export {target.stem}"
        )
    if target.is_dir() and any(target.iterdir()) and not (target / "data" / "index.js").is_file():
        raise ConfigError(f"{target} is not empty and contains no export. Choose another folder.")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} does not exist. Create it, or choose another folder.")
    return False


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "replace"))
