"""The run store: tasks with their lineage, signals, rounds and episodes, in one SQLite file.

It is written at step boundaries, one transaction for each event; what a method has returned from
is on disk. It only listens: nothing in training reads it, except that a round whose result is
there is not carried out twice (see :meth:`RunStore.result`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coevo_gym.curricula.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.errors import StoreError
from coevo_gym.evolution import Round, RoundResult, Signal, digest
from coevo_gym.run.folder import DAMAGED, storing
from coevo_gym.task import Task, canonical_json
from coevo_gym.trajectory import Group, Trajectory

Record = Literal["signals", "all", "none"]
_SCHEMA_VERSION = 1
_LONG = 64
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, name TEXT, origin TEXT, split TEXT, subset TEXT, scenario TEXT,
    instruction TEXT, body BLOB);
CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, round_id TEXT, body BLOB);
CREATE TABLE IF NOT EXISTS rounds (
    arm TEXT, round_id TEXT, step INTEGER, arm_env_steps INTEGER, pool_size INTEGER, key TEXT,
    body BLOB, PRIMARY KEY (arm, round_id));
CREATE TABLE IF NOT EXISTS verdicts (
    arm TEXT, round_id TEXT, position INTEGER, draft_id TEXT, context_id TEXT, accepted INTEGER,
    gate TEXT, reason TEXT, task_id TEXT, PRIMARY KEY (arm, round_id, position));
CREATE TABLE IF NOT EXISTS lineage (
    arm TEXT, round_id TEXT, task_id TEXT, parent_id TEXT,
    PRIMARY KEY (arm, round_id, task_id, parent_id));
CREATE TABLE IF NOT EXISTS groups (
    arm TEXT, id TEXT, step INTEGER, task_id TEXT, size INTEGER, episodes INTEGER,
    successes INTEGER, score REAL, PRIMARY KEY (arm, id));
CREATE TABLE IF NOT EXISTS signals (
    arm TEXT, group_id TEXT, kind TEXT, position INTEGER, step INTEGER, task_id TEXT,
    evidence TEXT, PRIMARY KEY (arm, group_id, kind, position));
CREATE TABLE IF NOT EXISTS trajectories (
    arm TEXT, group_id TEXT, position INTEGER, step INTEGER, task_id TEXT, policy_version INTEGER,
    success INTEGER, score REAL, end_reason TEXT, steps INTEGER, body BLOB,
    PRIMARY KEY (arm, group_id, position));
CREATE TABLE IF NOT EXISTS texts (hash TEXT PRIMARY KEY, body BLOB);
"""
_OF_A_STEP = ("rounds", "groups", "signals", "trajectories")


class StoredRound(NamedTuple):
    """A round as it was applied in an arm.

    Attributes:
        arm: name of the arm.
        step: the arm's step at which it was applied.
        arm_env_steps: env steps that the arm had spent then, the round's own included.
        pool_size: tasks in the arm's pool after it.
        round: the order.
        result: what came of it.
    """

    arm: str
    step: int
    arm_env_steps: int
    pool_size: int
    round: Round
    result: RoundResult


class TaskCount(NamedTuple):
    """How often an arm practised a task."""

    arm: str
    task_id: str
    episodes: int
    successes: int


class SignalCount(NamedTuple):
    """How many signals of a kind an arm had at a step."""

    arm: str
    step: int
    kind: str
    n: int


class RunStore:
    """The database of a run.

    Args:
        path: the file; made if it is not there.
        record: episodes to keep: those of groups that fired a signal, all, or none. ``none``
            keeps no signals either; what rounds and reports need is always kept.

    Raises:
        StoreError: if it cannot be opened or is no run store.
    """

    def __init__(self, path: Path, *, record: Record = "signals") -> None:
        self.path = path
        self.record = record
        with storing(path):
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            # FULL: a commit is on disk, also after a power cut.
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _SCHEMA_VERSION):
                raise StoreError(
                    f"{path} has schema {version}; this version of coevo_gym reads "
                    f"{_SCHEMA_VERSION}."
                )
            if version == 0:
                self._db.executescript(f"{_SCHEMA} PRAGMA user_version={_SCHEMA_VERSION};")

    def close(self) -> None:
        """Close the file; twice is fine."""
        self._db.close()

    # What happened.

    def add_groups(
        self, arm: str, step: int, groups: Sequence[Group], signals: Sequence[Signal]
    ) -> None:
        """Store the groups of a step, and the signals that they fired."""
        fired = {signal.group_id for signal in signals}
        with self._transaction():
            self._add_tasks(group.task for group in groups)
            for group in groups:
                self._add_group(arm, step, group)
                if self.record == "all" or (self.record == "signals" and group.id in fired):
                    for position, trajectory in enumerate(group.trajectories):
                        self._add_trajectory(arm, step, group, position, trajectory)
            for signal in signals if self.record != "none" else ():
                place = (arm, signal.group_id, str(signal.kind), signal.index)
                evidence = canonical_json(signal.model_dump(mode="json")["evidence"])
                self._insert("signals", *place, step, signal.task_id, evidence)

    def add_result(self, round: Round, result: RoundResult) -> None:
        """Store what carrying out a round gave, before anything is made of it."""
        with self._transaction():
            body = _pack(result.model_dump(mode="json"))
            self._insert("results", _key(round), round.id, body)

    def add_round(
        self, arm: str, step: int, env_steps: int, pool_size: int, round: Round, result: RoundResult
    ) -> None:
        """Store that a round was applied; see :class:`StoredRound`."""
        with self._transaction():
            key, body = _key(round), _pack(round.model_dump(mode="json"))
            self._insert("results", key, round.id, _pack(result.model_dump(mode="json")))
            self._insert("rounds", arm, round.id, step, env_steps, pool_size, key, body)
            self._add_tasks(context.task for context in round.contexts)
            self._add_tasks(result.accepted)
            for task in result.accepted:
                for parent in task.parents or ("",):
                    self._insert("lineage", arm, round.id, task.id, parent)
            for position, verdict in enumerate(result.verdicts):
                row = (verdict.draft_id, verdict.context_id, int(verdict.accepted))
                end = (verdict.gate, verdict.reason, verdict.task_id)
                self._insert("verdicts", arm, round.id, position, *row, *end)

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Store tasks; those that are there stay as they are."""
        with self._transaction():
            self._add_tasks(tasks)

    def rewind(self, arm: str, step: int) -> None:
        """Forget what an arm did after a step; results of rounds stay, to be used again."""
        with self._transaction():
            for table in ("verdicts", "lineage"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE arm = ? AND round_id IN "  # noqa: S608 (constants)
                    "(SELECT round_id FROM rounds WHERE arm = ? AND step > ?)",
                    (arm, arm, step),
                )
            for table in _OF_A_STEP:
                self._db.execute(
                    f"DELETE FROM {table} WHERE arm = ? AND step > ?",  # noqa: S608 (constants)
                    (arm, step),
                )

    # What is there.

    def result(self, round: Round) -> RoundResult | None:
        """The result of exactly this round, if it was carried out before, in any arm."""
        rows = self._rows("SELECT body FROM results WHERE key = ?", _key(round))
        return RoundResult.model_validate(self._unpack(rows[0][0])) if rows else None

    def tasks(self, *, origin: str | None = None) -> list[Task]:
        """All stored tasks in the order they came, or those of one origin."""
        query = "SELECT body FROM tasks WHERE ? IS NULL OR origin = ? ORDER BY rowid"
        return [
            Task.from_json(self._decompress(row[0])) for row in self._rows(query, origin, origin)
        ]

    def rounds(self, arm: str | None = None) -> list[StoredRound]:
        """Rounds that were applied, in order, of one arm or all."""
        query = (
            "SELECT arm, step, arm_env_steps, pool_size, rounds.body, results.body FROM rounds "
            "JOIN results USING (key) WHERE ? IS NULL OR arm = ? ORDER BY rounds.rowid"
        )
        return [
            StoredRound(
                arm=name,
                step=step,
                arm_env_steps=env_steps,
                pool_size=pool_size,
                round=Round.model_validate(self._unpack(order)),
                result=RoundResult.model_validate(self._unpack(result)),
            )
            for name, step, env_steps, pool_size, order, result in self._rows(query, arm, arm)
        ]

    def signals(self, arm: str) -> list[Signal]:
        """An arm's signals, in order."""
        query = (
            "SELECT kind, task_id, group_id, position, evidence FROM signals WHERE arm = ? "
            "ORDER BY rowid"
        )
        return [
            Signal(kind=kind, task_id=task, group_id=group, index=index, evidence=json.loads(text))
            for kind, task, group, index, text in self._rows(query, arm)
        ]

    def signal_counts(self) -> list[SignalCount]:
        """Signals by arm, step and kind."""
        query = "SELECT arm, step, kind, count(*) FROM signals GROUP BY arm, step, kind"
        return [SignalCount(*row) for row in self._rows(query)]

    def task_counts(self) -> list[TaskCount]:
        """How often each arm practised each task."""
        query = (
            "SELECT arm, task_id, sum(episodes), sum(successes) FROM groups GROUP BY arm, task_id"
        )
        return [TaskCount(*row) for row in self._rows(query)]

    def trajectories(self, arm: str, task_id: str | None = None) -> list[Trajectory]:
        """Stored episodes of an arm in order, of one task or all.

        They are as they were but for what choices a policy had: of a decision over choices only
        the outcome is kept, and that is the step's action.
        """
        query = (
            "SELECT body FROM trajectories WHERE arm = ? AND (? IS NULL OR task_id = ?) "
            "ORDER BY step, rowid"
        )
        rows = self._rows(query, arm, task_id, task_id)
        return [trajectory_from_json(self._with_texts(self._unpack(row[0]))) for row in rows]

    # How it works.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; on disk when it is over."""
        with storing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with storing(self.path):
            return self._db.execute(query, values).fetchall()

    def _insert(self, table: str, *values: Any, new_only: bool = False) -> None:
        verb = "INSERT OR IGNORE" if new_only else "INSERT OR REPLACE"
        marks = ", ".join("?" * len(values))
        self._db.execute(f"{verb} INTO {table} VALUES ({marks})", values)

    def _add_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            labels = (task.id, task.name, task.origin, str(task.split), task.subset, task.scenario)
            body = zlib.compress(task.to_json().encode())
            self._insert("tasks", *labels, task.instruction, body, new_only=True)

    def _add_group(self, arm: str, step: int, group: Group) -> None:
        arrived = group.trajectories
        successes = sum(trajectory.success for trajectory in arrived)
        score = sum(trajectory.score for trajectory in arrived) / max(1, len(arrived))
        counts = (group.size, len(arrived), successes, score)
        self._insert("groups", arm, group.id, step, group.task.id, *counts)

    def _add_trajectory(
        self, arm: str, step: int, group: Group, position: int, trajectory: Trajectory
    ) -> None:
        bare = replace(
            trajectory, steps=tuple(replace(step, decision=None) for step in trajectory.steps)
        )
        body = _pack(self._without_texts(trajectory_to_json(bare)))
        outcome = (int(trajectory.success), trajectory.score, str(trajectory.end_reason))
        self._insert(
            "trajectories",
            *(arm, group.id, position, step, group.task.id, trajectory.policy_version),
            *(*outcome, len(trajectory.steps), body),
        )

    def _without_texts(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """The trajectory with a hash in place of each long text, which is stored once."""
        for step in trajectory["steps"]:
            for field in ("observation", "shown"):
                text = step[field]
                if len(text) > _LONG:
                    hash = hashlib.sha256(text.encode()).hexdigest()[:32]
                    body = zlib.compress(text.encode())
                    self._insert("texts", hash, body, new_only=True)
                    step[field] = {"text": hash}
        return trajectory

    def _with_texts(self, trajectory: Any) -> dict[str, Any]:
        for step in trajectory["steps"]:
            for field in ("observation", "shown"):
                if isinstance(step[field], Mapping):
                    query = "SELECT body FROM texts WHERE hash = ?"
                    rows = self._rows(query, step[field]["text"])
                    if not rows:
                        raise StoreError(f"{self.path} has lost the text {step[field]['text']}.")
                    step[field] = self._decompress(rows[0][0]).decode()
        whole: dict[str, Any] = trajectory
        return whole

    def _unpack(self, body: bytes) -> Any:
        return json.loads(self._decompress(body))

    def _decompress(self, body: bytes) -> bytes:
        try:
            return zlib.decompress(body)
        except zlib.error as error:
            raise StoreError(f"A row of {self.path} cannot be read: {error}. {DAMAGED}") from error


def _key(round: Round) -> str:
    """What a round is a function of: its order, and the tasks it must not find again."""
    return digest([round.model_dump(mode="json"), [task.id for task in round.known]])


def _pack(value: Any) -> bytes:
    return zlib.compress(canonical_json(value).encode())
