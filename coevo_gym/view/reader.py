"""A read-only database reader with queries that only the viewer needs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Signal
from coevo_gym.core.notes import INTERFACE, Note
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json
from coevo_gym.store.database import SCHEMA
from coevo_gym.store.folder import connect_read_only, raise_decode_errors, raise_store_errors
from coevo_gym.store.reader import SCHEMA_VERSION, RunReader
from coevo_gym.store.rows import COLUMNS, StoredRound
from coevo_gym.store.sampled import SAMPLED, ChoicesMade, Sampled, sampled_from_json
from coevo_gym.view.query import task_search_text

_AT_ONCE = 500


class NoteGroup(NamedTuple):
    """The notes of one kind with one label.

    Attributes:
        kind: name of the study that wrote the notes.
        label: the label, or "".
        n: number of notes.
        n_early: number of notes in the first half of the arm's learner steps.
        first: learner step of the first note.
        last: learner step of the latest note.
        n_tasks: number of tasks that the notes are about.
        value: mean value.
        most: largest absolute value.
        likeness: mean similarity between the expected and the actual next observation; None if no
            note has one.
        floor: mean similarity between the observations before and after the step; None if no note
            has one.
    """

    kind: str
    label: str
    n: int
    n_early: int
    first: int
    last: int
    n_tasks: int
    value: float
    most: float
    likeness: float | None
    floor: float | None


class StoredAdvice(NamedTuple):
    """A change to a piece of advice in one of an arm's memories."""

    step: int
    memory: str
    state: AdviceState


class ViewReader(RunReader):
    """A database reader for runs and evaluations. It keeps the file open between queries.

    One page needs many short queries, so the reader keeps the file open for its whole life: one
    response, or one export. Between queries it holds no lock that could block a writer. A file
    that does not exist yet is read as an empty database. Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._checked = path, {}
        self._last_round: StoredRound | None = None
        with raise_store_errors(path):
            if path.is_file():
                self._connection = connect_read_only(path)
            else:
                self._connection = sqlite3.connect(":memory:", check_same_thread=False)
                self._connection.executescript(f"{SCHEMA} PRAGMA user_version={SCHEMA_VERSION}")
            self._connection.create_function(
                "task_search_text", 3, task_search_text, deterministic=True
            )
        self._check_version(self._rows("PRAGMA user_version")[0][0])

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with raise_store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    def unpack(self, body: bytes) -> Any:
        """Return the JSON value of a compressed body."""
        return self._unpack(body)

    def query_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query, which may call :func:`task_search_text`, and return its rows."""
        return self._rows(query, *values)

    def round(self, arm: str, round_id: str) -> StoredRound:
        """Return a stored round, and cache it so that its drafts can be read quickly."""
        last = self._last_round
        if last is None or (last.arm, last.round.id) != (arm, round_id):
            last = self._last_round = super().round(arm, round_id)
        return last

    def stored_parts(self) -> dict[str, bool]:
        """Report whether the run stores choices, tokens and advantages."""
        flags = dict.fromkeys(("choices", "tokens", "advantages"), False)
        query = "SELECT arm, group_id, position FROM sampled LIMIT 1"
        for arm, group, position in self._rows(query):
            try:
                steps = [
                    step for step in self.sampled_decisions(arm, group, position) or () if step
                ]
            except (StoreError, ValueError, KeyError):
                continue  # a damaged row, reported on its episode's page
            chosen = any(isinstance(step, ChoicesMade) for step in steps)
            flags["choices" if chosen else "tokens"] = bool(steps)
        query = "SELECT 1 FROM advantages LIMIT 1"
        flags["advantages"] = bool(self._rows(query))
        return flags

    def trajectory(self, arm: str, group: str, position: int) -> Trajectory | None:
        """Return an episode's trajectory, or None if the episode is not stored."""
        body = self._episode_body("trajectories", arm, group, position)
        return body and trajectory_from_json(self._restore_texts(self._unpack(body)))

    def signals_of(self, arm: str, group: str) -> list[Signal]:
        """Return the signals emitted for a group's episodes."""
        query = (
            "SELECT kind, task_id, group_id, position, evidence FROM signals "
            "WHERE arm = ? AND group_id = ? ORDER BY rowid"
        )
        return [self._signal_from_row(row) for row in self._rows(query, arm, group)]

    def notes_about(self, arm: str, step: int, group: str, position: int) -> list[Note]:
        """Return the notes about one episode at a given learner step."""
        query = (
            f"SELECT {COLUMNS} FROM notes WHERE arm = ? AND step = ? "  # noqa: S608 (constants)
            "AND group_id = ? AND position = ? ORDER BY number"
        )
        rows = self._rows(query, arm, step, group, position)
        return [self._note_from_row(row) for row in rows]

    def episodes_with_note(
        self, arm: str, kind: str, label: str, most: int = 3
    ) -> list[tuple[str, int, int]]:
        """Return the latest episodes with a note of the given kind and label."""
        query = (
            "SELECT n.group_id, n.position, n.step FROM notes AS n CROSS JOIN trajectories AS t "
            "USING (arm, group_id, position) WHERE n.arm = ? AND n.kind = ? AND n.label = ? "
            "ORDER BY n.step DESC, n.number LIMIT ?"
        )
        # One episode may have several such notes.
        rows = self._rows(query, arm, kind, label, 8 * most)
        places = dict.fromkeys((group, position, step) for group, position, step in rows)
        return list(places)[:most]

    def note_groups(self, arm: str) -> list[NoteGroup]:
        """Summarise an arm's notes, except for interfaces, by kind and label.

        Within a kind, the most frequent label comes first.
        """
        likeness, floor = (
            f"avg(CASE WHEN json_type(evidence, '{path}') IN ('integer', 'real') "
            f"THEN json_extract(evidence, '{path}') END)"
            for path in ("$.likeness[0]", "$.floor")
        )
        half = "(SELECT max(step) FROM notes WHERE arm = ?)"
        query = (
            "SELECT kind, label, count(*), "  # noqa: S608 (constants)
            f"sum(2 * step <= {half}), min(step), max(step), count(DISTINCT task_id), "
            f"avg(value), max(abs(value)), {likeness}, {floor} "
            "FROM notes WHERE arm = ? AND kind != ? "
            "GROUP BY kind, label ORDER BY kind, count(*) DESC, label"
        )
        return [NoteGroup(*row) for row in self._rows(query, arm, arm, INTERFACE)]

    def advice(self, arm: str) -> list[StoredAdvice]:
        """Return all changes to an arm's advice, in order."""
        query = "SELECT step, memory, body FROM advice WHERE arm = ? ORDER BY step, rowid"
        with raise_decode_errors(self.path):
            return [
                StoredAdvice(step, memory, AdviceState.model_validate_json(body))
                for step, memory, body in self._rows(query, arm)
            ]

    def has_episode(self, arm: str, group: str, position: int) -> bool:
        """Return True if an episode is stored."""
        return self._episode_body("trajectories", arm, group, position) is not None

    def sampled_decisions(
        self, arm: str, group: str, position: int
    ) -> Sequence[Sampled | None] | None:
        """Return the policy's stored decision at each step of an episode."""
        body = self._episode_body("sampled", arm, group, position)
        return body and sampled_from_json(self._unpack(body), self._resolve_text)

    def eval_decisions(
        self, arm: str, step: int, task_id: str, sample: int
    ) -> Sequence[Sampled | None] | None:
        """Return the policy's stored decision at each step of an evaluation episode."""
        body = self._eval_body(arm, step, task_id, sample) or {}
        steps = body.get(SAMPLED)
        return steps and sampled_from_json(steps, self._resolve_text)

    def token_texts(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the text of each token, keyed by token id. Omit tokens without stored text."""
        texts: dict[int, str] = {}
        wanted = sorted(set(ids))
        for first in range(0, len(wanted), _AT_ONCE):
            some = wanted[first : first + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT id, text FROM token_texts WHERE id IN ({marks})"  # noqa: S608 (marks)
            texts |= dict(self._rows(query, *some))
        return texts

    def advantages(self, arm: str, group: str, position: int) -> float | Sequence[float] | None:
        """Return an episode's stored advantage, or the advantages of its steps."""
        body = self._episode_body("advantages", arm, group, position)
        with raise_decode_errors(self.path):
            value: float | Sequence[float] | None = body and json.loads(body)
        return value

    def stored_eval_episodes(self, arm: str, step: int) -> set[tuple[str, int]]:
        """Return the task id and sample number of each episode of an evaluation with steps."""
        query = (
            "SELECT task_id, sample FROM evaluations WHERE arm = ? AND step = ? "
            "AND body IS NOT NULL"
        )
        return set(self._rows(query, arm, step))

    def _episode_body(self, table: str, arm: str, group: str, position: int) -> Any:
        """Return an episode's body from the given table, or None if the table does not have it."""
        place = "arm = ? AND group_id = ? AND position = ?"
        query = f"SELECT body FROM {table} WHERE {place}"  # noqa: S608 (constants)
        rows = self._rows(query, arm, group, position)
        return rows[0][0] if rows else None

    def _resolve_text(self, value: Any) -> str:
        """Return the string that a JSON value contains, or that it refers to by hash."""
        if not isinstance(value, Mapping):
            return str(value)
        rows = self._rows("SELECT body FROM texts WHERE hash = ?", value["text"])
        return self._decompress(rows[0][0]).decode() if rows else ""
