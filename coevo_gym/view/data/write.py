"""Folders of exported episodes, with a data card.

A folder is written under a temporary name and then renamed, so it is complete or missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from coevo_gym import __version__
from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.text_tables import markdown_table
from coevo_gym.provision import explain_missing
from coevo_gym.runs.tasks.bundle import UNSTATED_TERMS
from coevo_gym.store.folder import (
    has_keys,
    raise_store_errors,
    refuse_links,
    replace_non_finite,
    write_atomic,
    write_json,
)
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.data.atif import atif_trajectories, import_atif
from coevo_gym.view.data.chats import chat_rows
from coevo_gym.view.data.columns import EPISODES, DataColumn, chat_columns, to_arrow, to_yaml
from coevo_gym.view.data.episodes import (
    ALL_TRAINING,
    EpisodeFilter,
    StoredCounts,
    StoredEpisode,
    check_filter,
    read_episodes,
)
from coevo_gym.view.data.rows import episode_row
from coevo_gym.view.library import Library
from coevo_gym.view.refusals import Refusal
from coevo_gym.view.safe import Censor

DataFormat = Literal["messages", "atif", "jsonl", "parquet"]
CARD, FACTS = "README.md", "export.json"
_MARK = "coevo_export"
"""Key that shows that a folder is an export."""
_ROWS_AT_ONCE = 200


@dataclass
class DataExport:
    """The result of an export of episodes.

    Attributes:
        folder: the folder.
        format: the format of the files.
        episodes: number of episodes by split.
        solved: number of solved episodes by split.
        arms: number of episodes by run and arm.
        models: the policies' models, with the number of episodes.
        benchmarks: the benchmarks, with the number of episodes.
        rows: number of rows, or of ATIF trajectories, by split.
        exact: number of episodes with the exact messages that a model was sent.
        redacted: number of rows in which secrets were removed.
        files: size and SHA-256 of each file, by name; of ATIF's files, one entry per folder.
    """

    folder: Path
    format: DataFormat
    episodes: Counter[str] = field(default_factory=Counter)
    solved: Counter[str] = field(default_factory=Counter)
    arms: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    benchmarks: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    redacted: int = 0
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def count(self, episode: StoredEpisode) -> None:
        """Count an episode."""
        about = episode.about
        self.episodes[about["split"]] += 1
        self.solved[about["split"]] += about["success"]
        self.arms[f"{about['run']} {about['arm']}"] += 1
        self.models[about["model"] or "none"] += 1
        self.benchmarks[about["benchmark"]] += 1
        self.exact += episode.body.get("transcript") is not None


def export_episodes(
    name: str,
    target: Path,
    format: DataFormat = "messages",
    wanted: EpisodeFilter = ALL_TRAINING,
    *,
    overwrite: bool = False,
    tell: Callable[[str], object] = lambda now: None,
) -> DataExport:
    """Write the stored episodes of a run, an evaluation or a table of runs to a folder.

    Args:
        name: name or folder of the run, evaluation or table.
        target: the folder to create.
        format: ``messages`` (chats in OpenAI's form, which TRL reads), ``atif`` (a file per chat),
            ``jsonl`` or ``parquet`` (whole episodes).
        wanted: the episodes to export; by default, those of training tasks.
        overwrite: replace an earlier export.
        tell: callback for progress messages.

    Returns:
        What was written.

    Raises:
        ConfigError: if the name is unknown, no episode matches, or the folder exists.
        ImportError: if a package for the format is missing.
        StoreError: if stored data is damaged, or a file cannot be written; nothing is changed then.
    """
    collection = RunCollection(Library([name]))
    _require_free(target, overwrite=overwrite)
    export = DataExport(target, format)
    files = _FORMATS[format](collection)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"Cannot create the folder {target}: {reason}. Choose another --out."
        ) from error
    with raise_store_errors(target):
        try:
            counts, sinks = StoredCounts(), dict[str, _Sink]()
            try:
                for number, episode in enumerate(read_episodes(collection, wanted, counts), 1):
                    split = episode.about["split"]
                    if split not in sinks:
                        sinks[split] = files.open(part, split, collection.censor)
                    export.count(episode)
                    export.rows[split] += sinks[split].add(episode)
                    if number % 10_000 == 0:
                        tell(f"{number:,} episodes")
            except Refusal as refusal:
                raise StoreError(str(refusal)) from refusal
            finally:
                for sink in sinks.values():
                    sink.close()
            check_filter(name, wanted, counts, sum(export.episodes.values()))
            export.redacted = sum(sink.redacted for sink in sinks.values())
            export.files = dict(_file_facts(part))
            facts = _facts(name, wanted, export)
            card = "\n".join(_card(name, export, files.columns, sinks))
            write_json(part / FACTS, facts)
            write_atomic(part / CARD, f"{card}\n".encode("utf-8", "replace"))
            _replace_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return export


def _require_free(target: Path, *, overwrite: bool) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise ConfigError(f"{target} already exists. Choose another --out, or pass --overwrite.")
    refuse_links(target)
    if not target.is_dir() or (any(target.iterdir()) and not has_keys(target / FACTS, _MARK)):
        raise ConfigError(
            f"{target} is not an export of episodes, so it is not overwritten. Choose another "
            "--out."
        )


def _replace_folder(part: Path, target: Path) -> None:
    """Rename a finished folder. An earlier export is deleted once the new one has its name."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(part, target)
    except OSError:
        with suppress(FileNotFoundError):
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


class _Sink(Protocol):
    """The files of one split."""

    redacted: int

    def add(self, episode: StoredEpisode) -> int:
        """Write an episode; return its number of rows."""
        ...

    def close(self) -> None:
        """Finish the files."""
        ...


class _Redacting:
    """Conversion of rows to JSON without secrets.

    Attributes:
        redacted: number of rows in which secrets were removed.
    """

    def __init__(self, censor: Censor) -> None:
        self._censor, self.redacted = censor, 0

    def to_text(self, row: Mapping[str, Any]) -> str:
        """Return a row as JSON in one line."""
        try:
            text = _ENCODER.encode(row)
        except ValueError:  # a number that is not finite, which JSON does not have
            text = _ENCODER.encode(replace_non_finite(row))
        clean = self._censor.redact(text)
        self.redacted += clean != text
        return clean


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_Rows = Callable[[StoredEpisode], Iterable[dict[str, Any]]]


class _JsonLines(_Redacting):
    """A JSON Lines file."""

    def __init__(self, path: Path, rows: _Rows, censor: Censor) -> None:
        super().__init__(censor)
        self._rows = rows
        self._file: BinaryIO = path.open("wb")

    def add(self, episode: StoredEpisode) -> int:
        """Write an episode; return its number of rows."""
        lines = [self.to_text(row) for row in self._rows(episode)]
        self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return len(lines)

    def close(self) -> None:
        """Sync the file to disk, and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _AtifFiles(_Redacting):
    """A folder with a JSON file per trajectory, each checked by the package ``atif``."""

    def __init__(self, folder: Path, censor: Censor) -> None:
        super().__init__(censor)
        self._folder, self._type = folder, import_atif().Trajectory
        self._names: set[str] = set()
        folder.mkdir()

    def add(self, episode: StoredEpisode) -> int:
        """Write an episode; return its number of trajectories."""
        trajectories = list(atif_trajectories(episode))
        for trajectory in trajectories:
            text = self.to_text(trajectory)
            try:
                self._type.model_validate_json(text.encode("utf-8", "replace"))
            except ValueError as error:
                raise StoreError(
                    f"Episode {episode.about['id']} of {episode.about['run']} does not fit ATIF: "
                    f"{error}. Export it as jsonl, and report this message."
                ) from error
            name = re.sub(r"[^\w.-]+", "_", f"{trajectory['trajectory_id']}")
            if name in self._names:  # cells of a table have the same ids
                name = re.sub(r"[^\w.~-]+", "_", f"{episode.about['run']}.{name}")
            self._names.add(name)
            (self._folder / f"{name}.json").write_bytes(f"{text}\n".encode("utf-8", "replace"))
        return len(trajectories)

    def close(self) -> None:
        """Do nothing; each file is closed already."""


class _Parquet(_Redacting):
    """A Parquet file, compressed with zstd."""

    def __init__(self, path: Path, censor: Censor) -> None:
        super().__init__(censor)
        with explain_missing("Parquet files need pyarrow.", "export"):
            import pyarrow
            import pyarrow.parquet
        self._arrow, self._schema = pyarrow, to_arrow(EPISODES, pyarrow)
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[dict[str, Any]] = []

    def add(self, episode: StoredEpisode) -> int:
        """Write an episode; return 1."""
        text = self.to_text(episode_row(episode)).encode("utf-8", "replace")
        self._waiting.append(json.loads(text))
        if len(self._waiting) == _ROWS_AT_ONCE:
            self._write()
        return 1

    def close(self) -> None:
        """Write the remaining rows, and close the file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            rows = self._arrow.Table.from_pylist(self._waiting, schema=self._schema)
            self._writer.write_table(rows)
            self._waiting = []


class _Files:
    """Files with rows: the names, columns and sinks of a format."""

    suffix = ".jsonl"

    def __init__(self, collection: RunCollection) -> None:
        self.columns: tuple[DataColumn, ...] = EPISODES

    def open(self, folder: Path, split: str, censor: Censor) -> _Sink:
        """Create the file of a split."""
        return _JsonLines(folder / f"{split}.jsonl", lambda one: [episode_row(one)], censor)


class _Messages(_Files):
    def __init__(self, collection: RunCollection) -> None:
        self.columns = chat_columns(calls_tools=_calls_tools(collection))

    def open(self, folder: Path, split: str, censor: Censor) -> _Sink:
        return _JsonLines(folder / f"{split}.jsonl", chat_rows, censor)


class _Atif(_Files):
    suffix = ""

    def __init__(self, collection: RunCollection) -> None:
        self.columns = ()
        import_atif()

    def open(self, folder: Path, split: str, censor: Censor) -> _Sink:
        return _AtifFiles(folder / split, censor)


class _ParquetFiles(_Files):
    suffix = ".parquet"

    def open(self, folder: Path, split: str, censor: Censor) -> _Sink:
        return _Parquet(folder / f"{split}.parquet", censor)


_FORMATS: Mapping[DataFormat, type[_Files]] = {
    "messages": _Messages, "atif": _Atif, "jsonl": _Files, "parquet": _ParquetFiles,
}  # fmt: skip


def _calls_tools(collection: RunCollection) -> bool:
    """Return True if an endpoint may have got calls as JSON."""
    try:
        return any(run.config.policy.kind == "openai" for run in collection.runs()) or any(
            "endpoint" in (one.config.get("settings") or {}) for one in collection.evals()
        )
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal


def _file_facts(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.iterdir()):
        paths = sorted(path.iterdir()) if path.is_dir() else [path]
        whole = hashlib.sha256()
        for one in paths:
            whole.update(one.read_bytes() if one is path else one.name.encode() + one.read_bytes())
        name = f"{path.name}/" if path.is_dir() else path.name
        size = sum(one.stat().st_size for one in paths)
        yield name, {"files": len(paths), "bytes": size, "sha256": whole.hexdigest()}


def _facts(name: str, wanted: EpisodeFilter, export: DataExport) -> dict[str, Any]:
    return {
        _MARK: __version__,
        "source": name,
        "format": export.format,
        "filter": wanted._asdict(),
        "splits": {
            split: {
                "episodes": n,
                "solved": export.solved[split],
                "rows": export.rows[split],
                "held_out": split != "train",
            }
            for split, n in export.episodes.items()
        },
        "arms": dict(export.arms),
        "models": dict(export.models),
        "benchmarks": dict(export.benchmarks),
        "exact": export.exact,
        "redacted_rows": export.redacted,
        "files": export.files,
    }


_CONTENT: Mapping[DataFormat, str] = {
    "messages": "A row is a chat in OpenAI's form. TRL reads the columns `messages` and `tools`.",
    "atif": "A file is a trajectory in ATIF 1.8. Its `extra` has the facts about the episode.",
    "jsonl": "A row is an episode, with each distinct message once.",
    "parquet": "A row is an episode, with each distinct message once.",
}


def _card(
    name: str, export: DataExport, columns: tuple[DataColumn, ...], splits: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of the data card."""
    suffix = ".parquet" if export.format == "parquet" else ".jsonl"
    yield "---"
    if columns:
        yield "configs:"
        yield "- config_name: default"
        yield "  data_files:"
        for split in splits:
            yield f"  - split: {split}"
            yield f"    path: {split}{suffix}"
        yield "dataset_info:"
        yield "  features:"
        yield from to_yaml(columns)
    yield "tags: [coevo_gym]"
    yield "---"
    total = sum(export.episodes.values())
    yield f"# Episodes of {name}\n"
    yield f"Written by `coevo export` (coevo_gym {__version__}). {_CONTENT[export.format]}\n"
    held_out = [split for split in export.episodes if split != "train"]
    if held_out:
        yield (
            f"**Evaluation data.** The episodes of {' and '.join(held_out)} tasks are for viewing "
            "only. They must not be used in training, in exploration, or in prompts. Each of their "
            "rows says so (`held_out`, `notice`), and coevo_gym refuses them.\n"
        )
    heading = ("split", "episodes", "solved", "rows")
    yield markdown_table(
        heading,
        [
            (split, f"{n:,}", f"{export.solved[split]:,}", f"{export.rows[split]:,}")
            for split, n in export.episodes.items()
        ],
    )
    yield ""
    for what, counts in (
        ("Benchmarks", export.benchmarks),
        ("Models", export.models),
        ("Runs and arms", export.arms),
    ):
        yield f"- {what}: " + ", ".join(f"{key} ({n:,})" for key, n in counts.items())
    yield (
        f"- Exact messages: {export.exact:,} of {total:,} episodes. Those of the others are made "
        "from observations and actions."
    )
    yield f"- Rows from which secrets were removed: {export.redacted:,}"
    for benchmark in export.benchmarks:
        spec = find_spec(benchmark)
        yield f"- Terms of {benchmark}: {(spec.terms if spec else '') or UNSTATED_TERMS}"
    if columns:
        yield "\n## Columns\n"
        yield markdown_table(
            ("column", "content"), [(column.name, column.about) for column in columns]
        )
