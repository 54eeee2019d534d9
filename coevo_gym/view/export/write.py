"""Functions that write reports and exports, either as one file or as pages with data files.

A report is an export of one run without episodes and walks, small enough to keep in the run folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coevo_gym.core.errors import CoevoError, ConfigError, StoreError
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.store.folder import RunFolder, raise_store_errors, write_atomic
from coevo_gym.store.reader import RunReader
from coevo_gym.view.api import about
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.export.gathering import (
    Response,
    has_held_out_episodes,
    page_response,
    pages_to_export,
    render_plain_pages,
    responses_to_export,
)
from coevo_gym.view.filters import LISTS
from coevo_gym.view.library import Library
from coevo_gym.view.model.runs import run_detail
from coevo_gym.view.refusals import Refusal
from coevo_gym.view.safe import Censor
from coevo_gym.view.shell import STATIC

_SHORT = 40
"""Minimum length of a string that is stored separately."""


class DataFile:
    """A data file that contains some of an export's responses.

    Each response becomes a line of JSON with secrets removed. The line contains the ``path``, any
    new ``texts``, and the ``answer``, in which ``{"$t": 3}`` refers to the fourth text in the file.
    The lines are compressed as they are added, so the size is known at any time.

    Args:
        censor: filter that removes secrets.

    Attributes:
        paths: paths of the responses so far, in order.
        size: uncompressed size of the lines in bytes.
        packed: compressed size of the lines in the file, in bytes.
    """

    def __init__(self, censor: Censor) -> None:
        self.paths: list[str] = []
        self.size = 0
        self._censor, self._deflate = censor, zlib.compressobj()
        self._packed = bytearray()
        self._places: dict[str, int] = {}
        self._new: dict[str, int] = {}

    @property
    def packed_size(self) -> int:
        """Return the size of the file's lines, in bytes, after compression and base64 encoding."""
        return len(self._packed) * 4 // 3

    def add(self, path: str, value: Any, room: float = math.inf) -> bool:
        """Add a response if it is certain to fit in the file. Return True if it was added."""
        self._new = {}
        answer = self._replace_texts(value)
        line = self._encode_line({"path": path, "answer": answer, "texts": list(self._new)})
        if len(line) * 4 / 3 > room:
            return False
        self._places |= self._new
        self.paths.append(path)
        self._write_line(line)
        return True

    def finish(self, **more: Any) -> str:
        """Finish the data file, and return it as base64 (see ``static/viewer/exported.js``).

        Args:
            more: further data for the file, besides the responses.
        """
        self._write_line(self._encode_line(more))
        self._packed += self._deflate.flush()
        return base64.b64encode(self._packed).decode()

    def _encode_line(self, value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{self._censor.redact(text)}\n".encode("utf-8", "replace")

    def _write_line(self, line: bytes) -> None:
        self.size += len(line)
        self._packed += self._deflate.compress(line)

    def _replace_texts(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._register_text(value)
        if isinstance(value, Mapping):
            return {key: self._replace_texts(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._replace_texts(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def _register_text(self, text: str) -> Any:
        if len(text) < _SHORT:
            return text
        place = self._places.get(text, self._new.get(text))
        if place is None:
            place = self._new[text] = len(self._places) + len(self._new)
        return {"$t": place}


def listings_to_json() -> dict[str, Any]:
    """Return the filters and sort orders of every list."""
    return {name: listing.to_json() for name, listing in LISTS.items()}


_STYLE = re.compile(r'<link rel="stylesheet" href="(static/[^"]+)">')
_SCRIPT = re.compile(r'<script src="(static/[^"]+)"></script>')
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_LAST = '<script src="static/viewer/main.js"></script>'
_ANSWERS = '<script src="static/viewer/exported.js"></script>'
_BOOT = re.compile(r'<div id="app">.*?</div>\n<noscript>.*?</noscript>', re.DOTALL)
_CHARSET = '<meta charset="utf-8">'
_ROBOTS = '<meta name="robots" content="noindex">'
_COMMON = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"


def embed_files(page: str, static: Path, data: str) -> str:
    """Return the page with all its scripts, styles and data embedded.

    Args:
        page: ``index.html`` of the viewer.
        static: the folder of its files.
        data: packed responses, see :meth:`DataFile.finish`.
    """

    def text_of(name: str) -> str:
        return (static.parent / name).read_text(encoding="utf-8")

    def embed_style(match: re.Match[str]) -> str:
        text = text_of(match[1]).replace("</", "<\\/")
        return f"<style>{text}</style>"

    def embed_script(match: re.Match[str]) -> str:
        # In a script, `<\\/` is equivalent to `</` wherever code may contain it.
        text = re.sub(r"</(?=script)", r"<\\/", text_of(match[1]), flags=re.IGNORECASE)
        text = text.replace("<!--", "<\\!--")
        return f"<script>{text}</script>"

    whole = _SCRIPT.sub(embed_script, _STYLE.sub(embed_style, _add_answers_script(page)))
    scripts, styles = _inline_hashes(whole, "script"), _inline_hashes(whole, "style")
    policy = f"{_COMMON}; script-src {scripts}; style-src {styles}"
    data_block = f'<script type="text/plain" id="coevo-export">{data}</script>\n'
    return _add_content_policy(_insert_before_scripts(whole, data_block, "<script>"), policy)


def link_files(page: str) -> str:
    """Return a page that loads its scripts and data from the export folder."""
    policy = f"{_COMMON}; script-src 'self' file:; style-src 'self' file:"
    data = '<script src="data/index.js"></script>\n'
    return _add_content_policy(
        _insert_before_scripts(_add_answers_script(page), data, "<script src="), policy
    )


def fill_page(page: str, *, title: str, plain: str, home: str, without: Sequence[str] = ()) -> str:
    """Return an export's HTML page, filled in from the viewer's page.

    Args:
        page: ``index.html`` of the viewer.
        title: title of the page.
        plain: HTML for readers without JavaScript.
        home: path of the first page; "" for the list of runs.
        without: kinds of pages that are missing from the export, see ``static/viewer/routes.js``.
    """
    about = f'data-home="{escape(quote(home))}" data-without="{" ".join(without)}"'
    page = page.replace('<html lang="en">', f'<html lang="en" {about}>', 1)
    page = page.replace("<title>coevo view</title>", f"<title>{escape(title)}</title>", 1)
    return _BOOT.sub(lambda _: f'<div id="app">{plain}</div>', page, count=1)


def copy_static(page: str, static: Path, folder: Path) -> None:
    """Copy the files that a page uses into a folder next to the page."""
    whole = _add_answers_script(page)
    for name in [*_STYLE.findall(whole), *_SCRIPT.findall(whole)]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(static.parent / name, target)


def _add_answers_script(page: str) -> str:
    if _LAST not in page:
        raise CoevoError(f"The viewer's HTML page does not contain {_LAST}. Reinstall coevo_gym.")
    return page.replace(_LAST, f"{_ANSWERS}\n{_LAST}")


def _insert_before_scripts(page: str, block: str, first: str) -> str:
    place = page.index(first)
    return page[:place] + block + page[place:]


def _add_content_policy(page: str, policy: str) -> str:
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(_CHARSET, f"{_CHARSET}\n{meta}\n{_ROBOTS}", 1)


def _inline_hashes(page: str, kind: str) -> str:
    texts = [text for name, text in _INLINE.findall(page) if name == kind]
    return " ".join(f"'sha256-{_sha256_base64(text)}'" for text in texts) or "'none'"


def _sha256_base64(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


MAX_BYTES = 10_000_000
"""Maximum size of a single-file export in bytes, small enough to send by email."""
REPORT_BYTES = 1_400_000
"""Maximum size in bytes of a report that includes pages for single tasks."""
MAX_UNPACKED = 36_000_000
"""Maximum size of a single file's uncompressed data in bytes, which a browser unpacks at once."""
MIN_FOR_PAGES = 8_000_000
"""Uncompressed bytes for the pages of the latest items, even if the lists exceed the maximum."""
_RESERVE = 150_000
"""Bytes reserved for the compressor's buffer and the final entries."""
PART_BYTES = 2_000_000
"""Size of the uncompressed data per file in a folder export, in bytes."""
WITHOUT_EPISODES = (
    "The steps of evaluation episodes are left out, because they show how held-out tasks are "
    "solved. Use --with-episodes to include them, but never train on such a file."
)
NOT_IN_REPORT = (
    "trajectories",
    "groups/",
    "drafts/",
    "evaluations",
    "evaluated",
    "evals",
    "side",
    "search",
)
"""Kinds of pages that reports omit. With a slash, reports omit only the pages for single items."""


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


def export_pages(
    library: Library,
    target: Path,
    *,
    episodes: bool = False,
    most_bytes: int = MAX_BYTES,
    tell: Callable[[str], object] = lambda now: None,
) -> Written:
    """Write the pages of runs and evaluations to files that can be opened without a server.

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
    if not (library.runs() or library.tables() or library.evals()):
        raise ConfigError(
            "Nothing to export: there are no runs in runs/ and no evaluations in evals/."
        )
    as_file = _is_single_file(target)
    collection = RunCollection(library)
    export = _Export(collection, held_out=episodes, tell=tell)
    with ExitStack() as reading:
        for run in collection.runs():
            reading.enter_context(run.reuse_reader())
        return export.write_file(target, most_bytes) if as_file else export.write_folder(target)


def write_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write a run's report to a path (by default in the run's folder), and return the path.

    For a run in progress, the report shows the data so far. The same data produces the same bytes.

    Raises:
        StoreError: if one of the run's files is missing or damaged, or writing fails.
    """
    path = path or folder.report
    with _open_for_report(folder) as collection:
        return _Export(collection, report=True).write_file(path, MAX_BYTES).page


@contextmanager
def _open_for_report(folder: RunFolder) -> Iterator[RunCollection]:
    """Open a run for a report; raise StoreError if any part of the run is missing or damaged."""
    read_manifest(folder)
    RunReader(folder.database)
    if not folder.metrics.is_file():
        raise StoreError(
            f"The run's metrics file {folder.metrics} is missing. Restore it, "
            "or train again with --overwrite."
        )
    collection = RunCollection(Library([folder]))
    try:
        with forbid_setup(), collection.runs()[0].reuse_reader():
            run_detail(collection.runs()[0])  # an export would skip a damaged run
            yield collection
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal


class _Export:
    """A writer for all pages of an export.

    Args:
        collection: the runs and evaluations.
        held_out: True to include the steps of evaluation episodes on held-out tasks.
        report: True to leave out episodes and walks, and everything else that does not fit.
        tell: callback for progress messages.
    """

    def __init__(
        self,
        collection: RunCollection,
        *,
        held_out: bool = False,
        report: bool = False,
        tell: Callable[[str], object] = lambda now: None,
    ) -> None:
        self._collection, self._held_out, self._report, self._tell = (
            collection,
            held_out,
            report,
            tell,
        )
        names = [run.name for run in collection.runs()]
        self._page = fill_page(
            (STATIC / "index.html").read_text(encoding="utf-8"),
            title=names[0] if len(names) == 1 else "coevo view",
            plain="".join(render_plain_pages(collection)),
            home=collection.library.home,
            without=NOT_IN_REPORT if report else (),
        )
        self._left_out = []
        if report:
            self._left_out = [f"Reports omit episodes and walks; see `coevo view {names[0]}`."]
        elif not held_out and has_held_out_episodes(collection):
            self._left_out = [WITHOUT_EPISODES]
        self._written = 0

    def write_file(self, target: Path, most_bytes: int) -> Written:
        """Write a single file that contains all lists and as many pages as fit in it."""
        part, folder = DataFile(self._collection.censor), target.with_suffix("")
        empty = len(embed_files(self._page, STATIC, "").encode("utf-8", "replace"))
        room = most_bytes - empty - _RESERVE
        for response in responses_to_export(self._collection, episodes=not self._report):
            if not self._add_response(
                part, response, room - part.packed_size if self._report else math.inf
            ):
                self._left_out.append(f"{response.path} is too large for this file.")
            if part.packed_size > room and not self._report:
                raise ConfigError(
                    "Even without any task or episode pages, the export exceeds the "
                    f"{round(most_bytes / 1e6)} MB limit for a single file. Export to a folder "
                    f"instead: --export {folder}"
                )
        if self._report:
            room = REPORT_BYTES - empty - _RESERVE
        most = max(MAX_UNPACKED, part.size + MIN_FOR_PAGES)
        wanted, there, full = Counter[tuple[str, str]](), Counter[tuple[str, str]](), False
        for page in pages_to_export(
            self._collection, held_out=self._held_out, episodes=not self._report
        ):
            wanted[page.of, page.kind] += 1
            if full or not (
                reply := page_response(self._collection, page.path, episodes=not self._report)
            ):
                continue
            added = self._add_response(part, reply, room - part.packed_size)
            there[page.of, page.kind] += added
            full = not added or part.size > most
        all_of = (
            f"coevo view {folder.parent.name}"
            if self._report
            else f"export to a folder, with --export {folder}"
        )
        for (of, kind), n in wanted.items():
            if (count := there[of, kind]) < n:
                self._left_out.append(
                    f"This file contains pages for the latest {count:,} of {n:,} {kind} of {of}. "
                    f"For all of them: {all_of}"
                )
        self._add_about(part)
        data = part.finish(lists=listings_to_json(), left_out=self._left_out)
        whole = embed_files(self._page, STATIC, data).encode("utf-8", "replace")
        write_atomic(target, whole)
        return Written(target, len(whole), self._left_out)

    def write_folder(self, target: Path) -> Written:
        """Write pages and separate data files that the pages load on demand."""
        scratch = target.with_name(f".{target.name}.part")
        with raise_store_errors(target):
            shutil.rmtree(scratch, ignore_errors=True)  # left over from a killed process
            (scratch / "data").mkdir(parents=True)
            try:
                self._write_files(scratch)
                size = sum(file.stat().st_size for file in scratch.rglob("*") if file.is_file())
                shutil.rmtree(target, ignore_errors=True)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Written(target / "index.html", size, self._left_out)

    def _write_files(self, folder: Path) -> None:
        files = dict[str, str]()
        for number, part in enumerate(self._data_files()):
            name = f"part-{number}"
            files |= dict.fromkeys(part.paths, name)
            text = part.finish()
            _write_text(folder / "data" / f"{name}.js", f'coevo.takeExport("{name}", "{text}");\n')
        index = DataFile(self._collection.censor)
        self._add_about(index)
        text = index.finish(files=files, lists=listings_to_json(), left_out=self._left_out)
        _write_text(folder / "data" / "index.js", f'window.coevoExport = "{text}";\n')
        _write_text(folder / "index.html", link_files(self._page))
        copy_static(self._page, STATIC, folder)

    def _data_files(self) -> Iterator[DataFile]:
        part = DataFile(self._collection.censor)
        for response in self._all_responses():
            self._add_response(part, response)
            if part.size > PART_BYTES:
                yield part
                part = DataFile(self._collection.censor)
        if part.paths:
            yield part

    def _all_responses(self) -> Iterator[Response]:
        yield from responses_to_export(self._collection)
        for page in pages_to_export(self._collection, held_out=self._held_out):
            if response := page_response(self._collection, page.path):
                yield response

    def _add_response(self, part: DataFile, response: Response, room: float = math.inf) -> bool:
        self._written += 1
        if self._written % 1000 == 0:
            self._tell(f"{self._written:,} pages written")
        return part.add(response.path, response.value, room)

    def _add_about(self, part: DataFile) -> None:
        now = None if self._report else datetime.now(UTC).isoformat(timespec="seconds")
        description = about(self._collection).model_copy(
            update={"exported": True, "made_at": now, "left_out": tuple(self._left_out)}
        )
        part.add("about", description.model_dump(mode="json"))


def _is_single_file(target: Path) -> bool:
    """Return True if the export target is a single file, or False if it is a folder.

    Raises:
        ConfigError: if the target can be neither a file nor a folder.
    """
    if target.suffix.lower() in (".html", ".htm"):
        if target.is_dir() or not target.parent.is_dir():
            raise ConfigError(f"Cannot write to {target}. Specify a file in an existing folder.")
        return True
    if target.is_file() or target.suffix.lower() in (".json", ".zip", ".txt", ".pdf"):
        raise ConfigError(
            f"--export needs a folder or a file name ending in .html, got {target}. Use --export "
            f"{target.stem}.html or --export {target.stem}."
        )
    if target.is_dir() and any(target.iterdir()) and not (target / "data" / "index.js").is_file():
        raise ConfigError(f"{target} is neither empty nor an export. Choose another folder.")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} does not exist. Create it, or choose another folder.")
    return False


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "replace"))
