"""A random-access file that stores the official ALFWorld games.

There are 4,027 games, each with a problem of about 50 kB. The store is a database with one
compressed problem per row, so opening the store or reading a game takes less than a millisecond.
`coevo install alfworld --from SOURCE` creates the store; the games themselves are not part of this
project.

All games share one domain and one grammar. The engine evaluates expressions in the grammar, so only
the release's own grammar is accepted, and the description of a task never becomes part of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile, is_zipfile

from coevo_gym.core.errors import BenchmarkNotInstalled, ConfigError, DataError, TaskError
from coevo_gym.envs.alfworld.goals import KINDS, LOOK, RoomGoal
from coevo_gym.provision import data_folder

COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}
STORE = "games.sqlite"
RELEASE = "ALFWorld 0.4.0"
GAME_FILE = "game.tw-pddl"
"""Name of a game's file in the release."""
UNKNOWN = "UNKNOWN GOAL"
"""The placeholder for the task's description in the grammar.

The description is inserted after text generation, because TextWorld evaluates any text in braces.
"""

_ADVICE = (
    "Run `coevo install alfworld --from FILE` with the text release of ALFWorld 0.4.0 "
    "(json_2.1.2_tw-pddl.zip), or set COEVO_ALFWORLD_DATA to where it was installed."
)
_PACKED = "alfworld_games.jsonl.xz"
_DOMAIN_SHA256 = "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9"
_GRAMMAR_SHA256 = "cce0702cd250cc6af6c3ea047a21f6c4c1c8d29a1739efefb5221ef4c3dcac57"
_ID = re.compile(
    rf"(?:{'|'.join(COUNTS)})/(?:{'|'.join(KINDS)})-[A-Za-z]+-None-[A-Za-z]+-[0-9]+/trial_T[0-9_]+"
)
_TASK = re.compile(r'(?<="Your task is to: )[^"\n]*(?=\.")')
_SCHEMA = """
CREATE TABLE head (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (id TEXT PRIMARY KEY, subset TEXT NOT NULL, task TEXT NOT NULL,
                      walkthrough TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE problems (id TEXT PRIMARY KEY, packed BLOB NOT NULL);
"""
_NOT_A_SOURCE = (OSError, EOFError, lzma.LZMAError, zlib.error, BadZipFile)
_NOT_A_GAME = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """An official game without its PDDL problem.

    Attributes:
        id: ``<subset>/<kind>-<object>-None-<receptacle or lamp>-<scene>/<trial>``.
        task: description of the task.
        walkthrough: commands that win the game.
    """

    id: str
    task: str
    walkthrough: tuple[str, ...]

    @property
    def goal(self) -> RoomGoal:
        """The game's goal, decoded from its id."""
        kind, thing, _, place, _ = self.id.split("/")[1].split("-")
        if kind == LOOK:
            return RoomGoal(kind=kind, object=thing, toggle=place)
        return RoomGoal(kind=kind, object=thing, receptacle=place)


class OfficialGame(NamedTuple):
    """An official game as read from its source."""

    entry: Entry
    domain: str
    grammar: str
    problem: str


class Games:
    """A store of official games that threads and forked processes can share.

    Attributes:
        domain: the PDDL domain of every game.
        grammar: the grammar of every game, with ``UNKNOWN GOAL`` instead of a task's description.
        digest: SHA-256 hash of the data that the store was made from, in hexadecimal.

    Raises:
        DataError: if the file is damaged, or its grammar differs from the official release.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._entries: dict[str, tuple[Entry, ...]] = {}
        head = dict(self._query("SELECT key, value FROM head"))
        if not head.keys() >= {"domain", "grammar", "digest"}:
            raise DataError(f"{file} has an incomplete header. {_ADVICE}")
        self.domain, self.grammar = head["domain"], head["grammar"]
        self.digest: str = head["digest"]
        _check_head(self.domain, self.grammar)

    def entries(self, subset: str) -> tuple[Entry, ...]:
        """Return the games of a subset, sorted by id.

        Raises:
            ConfigError: if the subset is unknown.
        """
        if subset not in COUNTS:
            raise ConfigError(
                f"ALFWorld has no {subset!r} games. Choose one of: {', '.join(COUNTS)}."
            )
        if subset not in self._entries:
            query = "SELECT id, task, walkthrough FROM entries WHERE subset = ? ORDER BY id"
            self._entries[subset] = tuple(
                Entry(id, task, tuple(json.loads(walkthrough)))
                for id, task, walkthrough in self._query(query, subset)
            )
        return self._entries[subset]

    def problem(self, id: str) -> str:
        """Return a game's PDDL problem.

        Raises:
            TaskError: if the game is unknown.
            DataError: if its data is damaged.
        """
        rows = self._query("SELECT packed FROM problems WHERE id = ?", id)
        if not rows:
            raise TaskError(f"{self._file} has no game {repr(id)[:120]}.")
        try:
            return zlib.decompress(rows[0][0]).decode()
        except (zlib.error, ValueError) as error:
            raise DataError(
                f"The data of game {id} in {self._file} is damaged: {error}. {_ADVICE}"
            ) from error

    def check_complete(self, source: Path | None = None) -> None:
        """Check that the store contains every game.

        Raises:
            DataError: if a game is missing; the message names ``source`` or, if None, the store.
        """
        query = "SELECT subset, count(*) FROM entries JOIN problems USING (id) GROUP BY subset"
        counts = dict(self._query(query))
        for subset, count in COUNTS.items():
            if counts.get(subset, 0) != count:
                raise DataError(
                    f"{source or self._file} must contain {count} {subset} games, but contains "
                    f"{counts.get(subset, 0)}. {_ADVICE}"
                )

    def _query(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Run a query on a new connection, because forks and threads cannot safely share one."""
        try:
            uri = f"{self._file.as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DataError(f"{self._file} cannot be read: {error}. {_ADVICE}") from error


def open_games() -> Games:
    """Return the installed official games. They are reopened only if their file has changed.

    Raises:
        BenchmarkNotInstalled: if no official games are installed.
        DataError: if the games are damaged or incomplete.
    """
    folder = data_folder("alfworld")
    if folder is None or not (folder / STORE).is_file():
        where = "on this machine" if folder is None else f"in {folder}"
        raise BenchmarkNotInstalled(f"No official ALFWorld games were found {where}. {_ADVICE}")
    stat = (folder / STORE).stat()
    return _open_store(folder / STORE, (stat.st_ino, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=4)
def _open_store(file: Path, stamp: tuple[int, ...]) -> Games:
    """Open a store of official games. A changed ``stamp`` bypasses the cache."""
    games = Games(file)
    games.check_complete()
    return games


def write_store(file: Path, games: Iterable[OfficialGame]) -> None:
    """Write official games to a store file; see :func:`read_official_games`.

    Raises:
        DataError: if a game is not official or occurs twice, or if there are no games.
    """
    digests = []
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executescript(_SCHEMA)
        head: tuple[str, str] | None = None
        for number, (entry, domain, grammar, problem) in enumerate(games, 1):
            if head != (domain, grammar):
                _check_head(domain, grammar)
                head = (domain, grammar)
            if not _ID.fullmatch(entry.id):
                raise DataError(f"{repr(entry.id)[:160]} is not the id of an official game.")
            subset, text = entry.id.partition("/")[0], problem.encode()
            row = (entry.id, subset, entry.task, json.dumps(entry.walkthrough))
            packed = zlib.compress(text, 3)
            try:
                connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
                connection.execute("INSERT INTO problems VALUES (?, ?)", (entry.id, packed))
            except sqlite3.IntegrityError as error:
                raise DataError(f"The game {entry.id} occurs twice in the source.") from error
            digests.append(hashlib.sha256(json.dumps(row).encode() + text).digest())
            if number % 1000 == 0:
                logger.info("converted games=%d of=%d", number, sum(COUNTS.values()))
        if head is None:
            raise DataError(f"The source contains no official games. {_ADVICE}")
        whole = hashlib.sha256(json.dumps(head).encode() + b"".join(sorted(digests)))
        connection.executemany(
            "INSERT INTO head VALUES (?, ?)",
            zip(("domain", "grammar", "digest"), (*head, whole.hexdigest()), strict=True),
        )


def read_official_games(source: Path) -> Iterator[OfficialGame]:
    """Yield the official games one by one.

    Args:
        source: the text release of ALFWorld 0.4.0 (``json_2.1.2_tw-pddl.zip``), the folder it
            unpacks to, or ``alfworld_games.jsonl.xz``, which contains the same games.

    Raises:
        ConfigError: if the source does not exist.
        DataError: if the content of the source is invalid.
    """
    if not source.exists():
        raise ConfigError(f"{source} does not exist. {_ADVICE}")
    packed = source / _PACKED if source.is_dir() else source
    try:
        if source.is_dir() and not packed.is_file():
            files = ((path.as_posix(), path.read_bytes()) for path in source.rglob(GAME_FILE))
            yield from _games_from_files(files)
        elif is_zipfile(packed):
            with ZipFile(packed) as archive:
                names = (name for name in archive.namelist() if name.endswith(f"/{GAME_FILE}"))
                yield from _games_from_files((name, archive.read(name)) for name in names)
        else:
            with lzma.open(packed) as lines:
                yield from _games_from_lines(lines)
    except (*_NOT_A_SOURCE, *_NOT_A_GAME) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"Cannot read ALFWorld games from {source}: {reason}. {_ADVICE}") from error


def _games_from_lines(lines: Iterable[bytes]) -> Iterator[OfficialGame]:
    """Yield the games in a JSONL file. Its first line holds the parts shared by all games."""
    rows = map(json.loads, lines)
    head: dict[str, Any] = next(rows, {})
    domain, grammar = _require_text(head["pddl_domain"]), _require_text(head["grammar"])
    for row in rows:
        yield OfficialGame(
            _parse_entry(row["id"], row["task"], row),
            domain,
            grammar,
            _require_text(row["pddl_problem"]),
        )


def _games_from_files(files: Iterable[tuple[str, bytes]]) -> Iterator[OfficialGame]:
    """Yield the games in the release's files, except those that the official loader skips."""
    for path, data in files:
        id = "/".join(path.split("/")[-4:-1])
        row = json.loads(data)
        if "movable" in id or "Sliced" in id or not row.get("solvable"):
            continue
        grammar = _require_text(row["grammar"])
        task = _TASK.search(grammar)
        if task is None:
            raise ValueError(f"{path} does not specify its task")
        template = grammar[: task.start()] + UNKNOWN + grammar[task.end() :]
        domain, problem = _require_text(row["pddl_domain"]), _require_text(row["pddl_problem"])
        yield OfficialGame(_parse_entry(id, task.group(), row), domain, template, problem)


def _parse_entry(id: Any, task: Any, row: dict[str, Any]) -> Entry:
    return Entry(
        _require_text(id), _require_text(task), tuple(map(_require_text, row["walkthrough"]))
    )


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {repr(value)[:60]}")
    value.encode()  # raises for a lone surrogate
    return value


def _check_head(domain: str, grammar: str) -> None:
    wanted = (("domain", domain, _DOMAIN_SHA256), ("grammar", grammar, _GRAMMAR_SHA256))
    for name, text, digest in wanted:
        actual = hashlib.sha256(text.encode()).hexdigest()
        if actual != digest:
            raise DataError(
                f"The {name} of the games does not match ALFWorld 0.4.0: expected hash "
                f"{digest[:12]}, got {actual[:12]}. {_ADVICE}"
            )
