"""The run store: tasks with their lineage, signals, rounds and episodes, in one SQLite file.

It is written at step boundaries, and by rounds that run alongside training. Each event is one
transaction, and data is on disk when a method returns. Training never reads from the store, with
two exceptions: a round with a stored result is not run again (:meth:`RunStore.result`), and is
applied at the same step as before (:meth:`RunStore.round_step`).
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from coevo_gym.core.advice import AdviceState, advice_ids
from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Round, RoundResult, Signal, digest, find_instruction
from coevo_gym.core.notes import Note
from coevo_gym.core.reading import check_regular_file
from coevo_gym.core.seams import Advantage
from coevo_gym.core.task import Task, canonical_json
from coevo_gym.core.trajectory import EvalTrajectory, Group, Trajectory
from coevo_gym.core.trajectory_json import eval_trajectory_to_json, trajectory_to_json
from coevo_gym.store.folder import connect_to_write, file_identity, raise_store_errors, transaction
from coevo_gym.store.reader import SCHEMA_VERSION, Evaluated, EvaluatedTask, RunReader
from coevo_gym.store.rows import Decision, StoredRound, join_names, note_to_row
from coevo_gym.store.sampled import (
    SAMPLED,
    Spell,
    mean_and_json_of_advantages,
    replace_surrogates,
    sampled_ids,
    sampled_to_json,
)

Record = Literal["signals", "all", "none"]
_LONG = 64
MAX_WORDS = 4000
"""Maximum number of characters of an episode's actions that can be searched."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, name TEXT, origin TEXT, split TEXT, subset TEXT, scenario TEXT,
    instruction TEXT, body BLOB, checksum INTEGER);
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, round_id TEXT, body BLOB, checksum INTEGER);
CREATE TABLE IF NOT EXISTS rounds (
    arm TEXT, round_id TEXT, step INTEGER, arm_env_steps INTEGER, pool_size INTEGER, key TEXT,
    first INTEGER, counts TEXT, body BLOB, checksum INTEGER, PRIMARY KEY (arm, round_id));
CREATE TABLE IF NOT EXISTS verdicts (
    arm TEXT, round_id TEXT, position INTEGER, draft_id TEXT, context_id TEXT, accepted INTEGER,
    gate TEXT, reason TEXT, task_id TEXT, kind TEXT, instruction TEXT, checksum INTEGER,
    PRIMARY KEY (arm, round_id, position));
CREATE TABLE IF NOT EXISTS lineage (
    arm TEXT, round_id TEXT, task_id TEXT, parent_id TEXT, checksum INTEGER,
    PRIMARY KEY (arm, round_id, task_id, parent_id));
CREATE TABLE IF NOT EXISTS groups (
    arm TEXT, id TEXT, step INTEGER, task_id TEXT, size INTEGER, episodes INTEGER,
    successes INTEGER, score REAL, kinds TEXT, checksum INTEGER, PRIMARY KEY (arm, id));
CREATE TABLE IF NOT EXISTS signals (
    arm TEXT, group_id TEXT, kind TEXT, position INTEGER, step INTEGER, task_id TEXT,
    evidence TEXT, checksum INTEGER, PRIMARY KEY (arm, group_id, kind, position));
CREATE TABLE IF NOT EXISTS trajectories (
    arm TEXT, group_id TEXT, position INTEGER, step INTEGER, task_id TEXT, policy_version INTEGER,
    success INTEGER, score REAL, end_reason TEXT, steps INTEGER, kinds TEXT, errors INTEGER,
    advice TEXT, failure TEXT, failed_turn INTEGER, words TEXT, body BLOB, checksum INTEGER,
    PRIMARY KEY (arm, group_id, position));
CREATE INDEX IF NOT EXISTS listed ON trajectories (
    arm, step, group_id, position, task_id, policy_version, success, score, end_reason, steps,
    kinds, errors, advice, failure, failed_turn, words);
CREATE TABLE IF NOT EXISTS sampled (
    arm TEXT, group_id TEXT, position INTEGER, step INTEGER, body BLOB, checksum INTEGER,
    PRIMARY KEY (arm, group_id, position));
CREATE TABLE IF NOT EXISTS advantages (
    arm TEXT, group_id TEXT, position INTEGER, step INTEGER, mean REAL, body TEXT, checksum INTEGER,
    PRIMARY KEY (arm, group_id, position));
CREATE TABLE IF NOT EXISTS notes (
    arm TEXT, step INTEGER, number INTEGER, task_id TEXT, group_id TEXT, position INTEGER,
    step_of_episode INTEGER, kind TEXT, label TEXT, value REAL, source TEXT, evidence TEXT,
    checksum INTEGER, PRIMARY KEY (arm, step, number));
CREATE TABLE IF NOT EXISTS advice (
    arm TEXT, step INTEGER, memory TEXT, id TEXT, body TEXT, checksum INTEGER,
    PRIMARY KEY (arm, step, memory, id));
CREATE TABLE IF NOT EXISTS token_texts (id INTEGER PRIMARY KEY, text TEXT, checksum INTEGER);
CREATE TABLE IF NOT EXISTS texts (hash TEXT PRIMARY KEY, body BLOB, checksum INTEGER);
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY, task_id TEXT, what TEXT, reason TEXT, at TEXT, body BLOB,
    checksum INTEGER);
CREATE TABLE IF NOT EXISTS landings (
    arm TEXT, key TEXT, step INTEGER, checksum INTEGER, PRIMARY KEY (arm, key));
CREATE TABLE IF NOT EXISTS evaluated_tasks (
    id TEXT PRIMARY KEY, name TEXT, split TEXT, subset TEXT, scenario TEXT, instruction TEXT,
    tags TEXT, checksum INTEGER);
CREATE TABLE IF NOT EXISTS evaluations (
    arm TEXT, step INTEGER, task_id TEXT, sample INTEGER, success INTEGER, score REAL,
    end_reason TEXT, steps INTEGER, failure TEXT, failed_turn INTEGER, body BLOB, checksum INTEGER,
    PRIMARY KEY (arm, step, task_id, sample));
"""
"""SQL that creates the tables. ``kinds`` (of signals) and ``advice`` (ids) are lists that
:func:`join_names` wrote. ``failure`` is the benchmark's kind of failure, or "". ``words`` is an
episode's id and actions in lower case, ``first`` is true for the round that found D_0, ``counts``
is the JSON of :meth:`StoredRound.summarise`, and ``verdicts.kind`` is the kind of the draft's
context. The index ``listed`` contains every column that lists of episodes filter, search and sort
by, so that they do not read the bodies."""
_OF_A_STEP = (
    "rounds", "groups", "signals", "trajectories", "sampled", "advantages", "notes", "advice",
    "evaluations",
)  # fmt: skip


class RunStore(RunReader):
    """A run's database, opened for thread-safe writing.

    Args:
        path: path of the file; created if missing.
        record: episodes to store: those in groups that emitted a signal, all, or none. With
            ``none``, signals, notes and advice are not stored either; data that rounds and reports
            need is always stored.

    Attributes:
        spell: function that decodes sampled tokens to text; None if the policy does not sample
            tokens. With it, a language model's prompts and token texts are stored.
        diagnose: function that returns the kind of failure of a benchmark's training episode, and
            its turn; see :func:`~coevo_gym.envs.diagnosis.stored_failure`. None to store neither.

    Raises:
        StoreError: if the file cannot be opened or is not a run store.
    """

    def __init__(self, path: Path, *, record: Record = "signals") -> None:
        self.path = path
        self._checked = {}
        self.record = record
        self.spell: Spell | None = None
        self.diagnose: Callable[[str, Trajectory], tuple[str, int | None]] | None = None
        self._spelt: set[int] = set()
        with raise_store_errors(path):
            self._lock = threading.RLock()
            if path.exists():
                check_regular_file(path, pipes=False)
            self._db = connect_to_write(path)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version != 0:
                self._check_version(version)
            self._db.executescript(SCHEMA)
            with transaction(self._db):
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._identity = file_identity(path)

    def close(self) -> None:
        """Close the file. Repeated calls have no effect."""
        with self._lock:
            self._db.close()

    # Recording of events.

    def add_groups(
        self, arm: str, step: int, groups: Sequence[Group], signals: Sequence[Signal]
    ) -> None:
        """Store a step's groups and the signals that they emitted."""
        signals = signals if self.record != "none" else ()
        kinds: dict[str, list[tuple[int, str]]] = {}
        for signal in signals:
            kinds.setdefault(signal.group_id, []).append((signal.index, str(signal.kind)))
        with self._transaction():
            self._add_tasks(group.task for group in groups)
            for group in groups:
                emitted = kinds.get(group.id, [])
                self._add_group(arm, step, group, sorted(kind for _, kind in emitted))
                if self.record == "all" or (self.record == "signals" and emitted):
                    for position, trajectory in enumerate(group.trajectories):
                        mine = [kind for index, kind in emitted if index == position]
                        self._add_trajectory(arm, step, group, position, trajectory, mine)
            for signal in signals:
                place = (arm, signal.group_id, str(signal.kind), signal.index)
                evidence = canonical_json(signal.model_dump(mode="json")["evidence"])
                self._insert("signals", *place, step, signal.task_id, evidence)

    def add_advantages(
        self,
        arm: str,
        step: int,
        groups: Sequence[Group],
        advantages: Sequence[Sequence[Advantage]],
    ) -> None:
        """Store the advantages of a step's groups, skipping episodes not in the database."""
        if self.record == "none":
            return
        query = "SELECT 1 FROM trajectories WHERE arm = ? AND group_id = ? AND position = ?"
        with self._transaction():
            for group, values in zip(groups, advantages, strict=True):
                for position, value in enumerate(values):
                    place = (arm, group.id, position)
                    if self._db.execute(query, place).fetchone():
                        self._insert(
                            "advantages", *place, step, *mean_and_json_of_advantages(value)
                        )

    def add_notes(self, arm: str, step: int, notes: Iterable[Note]) -> None:
        """Store the notes that were written about a step's groups, replacing earlier notes."""
        with self._transaction():
            self._db.execute("DELETE FROM notes WHERE arm = ? AND step = ?", (arm, step))
            query = "SELECT DISTINCT group_id FROM trajectories WHERE arm = ? AND step = ?"
            stored = {row[0] for row in self._db.execute(query, (arm, step))}
            for number, note in enumerate(notes if self.record != "none" else ()):
                row = note_to_row(note, whole=note.group_id in stored)
                self._insert("notes", arm, step, number, *row)

    def add_advice(self, arm: str, step: int, changes: Mapping[str, Iterable[AdviceState]]) -> None:
        """Store the advice that a step changed in each memory, replacing the step's records."""
        with self._transaction():
            self._db.execute("DELETE FROM advice WHERE arm = ? AND step = ?", (arm, step))
            for memory, states in changes.items() if self.record != "none" else ():
                for state in states:
                    body = canonical_json(state.model_dump(mode="json", exclude_defaults=True))
                    self._insert("advice", arm, step, memory, state.id, body)

    def add_result(self, round: Round, result: RoundResult, *, by: str = "") -> None:
        """Store a round's result before the round is applied."""
        with self._transaction():
            body = _pack(result.model_dump(mode="json"))
            self._insert("results", _round_key(round, by), round.id, body)

    def copy_results(self, other: Path, round_id: str) -> None:
        """Copy the stored results of a round from another run's database, for reuse.

        Raises:
            StoreError: if the other database cannot be read.
        """
        rows = RunReader(other).packed_results(round_id)
        with self._transaction():
            for key, body in rows:
                self._insert("results", key, round_id, body, new_only=True)

    def add_round(
        self,
        arm: str,
        step: int,
        env_steps: int,
        pool_size: int,
        round: Round,
        result: RoundResult,
        *,
        by: str = "",
    ) -> None:
        """Record that a round was applied; see :class:`StoredRound`."""
        with self._transaction():
            key, body = _round_key(round, by), _pack(round.model_dump(mode="json"))
            stored = StoredRound(arm, step, env_steps, pool_size, round, result)
            counts = (int(stored.is_first), json.dumps(stored.summarise()))
            self._insert("results", key, round.id, _pack(result.model_dump(mode="json")))
            self._insert("rounds", arm, round.id, step, env_steps, pool_size, key, *counts, body)
            self._add_tasks(context.task for context in round.contexts)
            self._add_tasks(result.accepted)
            for task in result.accepted:
                for parent in task.parents or ("",):
                    self._insert("lineage", arm, round.id, task.id, parent)
            explored = (one.context for one in result.explored)
            kinds = {context.id: context.kind for context in (*round.contexts, *explored)}
            for position, verdict in enumerate(result.verdicts):
                row = (verdict.draft_id, verdict.context_id, int(verdict.accepted))
                end = (verdict.gate, verdict.reason, verdict.task_id)
                asked = find_instruction(verdict.draft, verdict.proposal)
                draft = (kinds.get(verdict.context_id, ""), asked)
                self._insert("verdicts", arm, round.id, position, *row, *end, *draft)

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Store tasks, leaving tasks that are already stored unchanged."""
        with self._transaction():
            self._add_tasks(tasks)

    def add_evaluated_tasks(self, tasks: Iterable[EvaluatedTask]) -> None:
        """Store the instructions of evaluated tasks separately from those of training tasks."""
        with self._transaction():
            for task in tasks:
                self._insert("evaluated_tasks", *task[:-1], json.dumps(task.tags), new_only=True)

    def add_evaluation(
        self,
        arm: str,
        step: int,
        episodes: Sequence[Evaluated],
        trajectories: Sequence[EvalTrajectory] = (),
    ) -> None:
        """Store an evaluation's results, replacing any earlier evaluation at the same step.

        Trajectories (one per episode, or none at all) are stored only with ``record = "all"``.
        """
        bodies: Iterable[bytes | None] = (None,) * len(episodes)
        if trajectories and self.record == "all":
            bodies = map(self._pack_trajectory, trajectories)
        with self._transaction():
            self._db.execute("DELETE FROM evaluations WHERE arm = ? AND step = ?", (arm, step))
            for episode, body in zip(episodes, bodies, strict=True):
                self._add_evaluated(arm, step, episode, body)

    def add_eval_episode(
        self, arm: str, step: int, episode: Evaluated, trajectory: EvalTrajectory
    ) -> None:
        """Store one evaluation episode with its trajectory, replacing any earlier version."""
        with self._transaction():
            self._add_evaluated(arm, step, episode, self._pack_trajectory(trajectory))

    def add_decisions(self, decisions: Iterable[Decision], tasks: Iterable[Task] = ()) -> None:
        """Store the user's decisions and any tasks imported with them."""
        with self._transaction():
            self._add_tasks(tasks)
            for decision in decisions:
                verdict = decision.verdict and _pack(decision.verdict.model_dump(mode="json"))
                self._insert("decisions", None, *decision[:-1], verdict)

    def add_round_step(self, arm: str, round: Round, step: int, *, by: str = "") -> None:
        """Store the step at which a concurrent round is about to be applied."""
        with self._transaction():
            self._insert("landings", arm, _round_key(round, by), step)

    def round_step(self, arm: str, round: Round, *, by: str = "") -> int | None:
        """Return the step at which an arm applied a round's result, or None if it is unknown."""
        query = "SELECT step FROM landings WHERE arm = ? AND key = ?"
        rows = self._rows(query, arm, _round_key(round, by))
        return rows[0][0] if rows else None

    def delete_after(self, arm: str, step: int) -> None:
        """Delete everything that an arm stored after a step.

        Results of rounds, and the steps at which they were applied, are kept for reuse.
        """
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

    def result(self, round: Round, *, by: str = "") -> RoundResult | None:
        """Return the result of this exact round, or None if no arm has run it yet.

        ``by`` identifies the explorer that ran it, if that makes a difference.
        """
        rows = self._rows("SELECT body FROM results WHERE key = ?", _round_key(round, by))
        return RoundResult.model_validate(self._unpack(rows[0][0])) if rows else None

    # Helpers.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Context manager that commits its writes atomically and syncs them to disk.

        Raises:
            StoreError: if the file cannot be written, or was moved or replaced.
        """
        with self._lock, raise_store_errors(self.path), transaction(self._db):
            yield
        if file_identity(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was deleted, moved or replaced while in use. If its folder was "
                "moved, resume it there, or move it back."
            )

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, raise_store_errors(self.path):
            return self._db.execute(query, values).fetchall()

    def _insert(self, table: str, *values: Any, new_only: bool = False) -> None:
        verb = "INSERT OR IGNORE" if new_only else "INSERT OR REPLACE"
        marks = ", ".join("?" * len(values))
        cursor = self._db.execute(f"{verb} INTO {table} VALUES ({marks}, NULL)", values)
        if cursor.rowcount:
            checksum = self._checksum_expression(table)
            query = f"UPDATE {table} SET checksum = {checksum} WHERE rowid = ?"  # noqa: S608
            self._db.execute(query, (cursor.lastrowid,))

    def _add_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            labels = (task.id, task.name, task.origin, str(task.split), task.subset, task.scenario)
            body = zlib.compress(task.to_json().encode())
            self._insert("tasks", *labels, task.instruction, body, new_only=True)

    def _add_evaluated(self, arm: str, step: int, episode: Evaluated, body: bytes | None) -> None:
        place = (arm, step, episode.task_id, episode.sample)
        outcome = (int(episode.success), episode.score, episode.end_reason, episode.steps)
        self._insert("evaluations", *place, *outcome, episode.failure, episode.failed_turn, body)

    def _pack_trajectory(self, trajectory: EvalTrajectory) -> bytes:
        body = self._intern_texts(eval_trajectory_to_json(trajectory))
        sampled = sampled_to_json(trajectory, self._intern, self.spell)
        return _pack(body if sampled is None else body | {SAMPLED: sampled})

    def _add_group(self, arm: str, step: int, group: Group, kinds: Sequence[str]) -> None:
        arrived = group.trajectories
        successes = sum(trajectory.success for trajectory in arrived)
        score = sum(trajectory.score for trajectory in arrived) / max(1, len(arrived))
        counts = (group.size, len(arrived), successes, score)
        self._insert("groups", arm, group.id, step, group.task.id, *counts, join_names(kinds))

    def _add_trajectory(
        self,
        arm: str,
        step: int,
        group: Group,
        position: int,
        trajectory: Trajectory,
        kinds: Sequence[str],
    ) -> None:
        sampled = sampled_to_json(trajectory, self._intern, self.spell)
        if sampled is not None:
            self._insert("sampled", arm, group.id, position, step, _pack(sampled))
            self._add_token_texts(trajectory)
        bare = replace(
            trajectory, steps=tuple(replace(step, decision=None) for step in trajectory.steps)
        )
        body = _pack(self._intern_texts(trajectory_to_json(bare)))
        outcome = (int(trajectory.success), trajectory.score, str(trajectory.end_reason))
        errors = sum(bool(step.error_kind) for step in trajectory.steps)
        actions = " ".join(step.action for step in trajectory.steps)[:MAX_WORDS]
        words = f"{arm}.{group.id}.{position} {actions}".lower()
        diagnose = self.diagnose
        failure = diagnose(group.task.benchmark, trajectory) if diagnose else ("", None)
        self._insert(
            "trajectories",
            *(arm, group.id, position, step, group.task.id, trajectory.policy_version),
            *(*outcome, len(trajectory.steps), join_names(kinds), errors),
            *(join_names(advice_ids(trajectory.cue_ids)), *failure, words, body),
        )

    def _intern_texts(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """Replace each long string in the trajectory with a hash, and store the string once."""
        for step in trajectory["steps"]:
            for field in ("observation", "shown"):
                step[field] = self._intern(step[field])
        if transcript := trajectory.get("transcript"):
            transcript["messages"] = [
                [role, self._intern(replace_surrogates(text))]
                for role, text in transcript["messages"]
            ]
            transcript["tools"] = [
                self._intern(replace_surrogates(text)) for text in transcript["tools"]
            ]
        return trajectory

    def _intern(self, text: str) -> str | dict[str, str]:
        """Return a short string unchanged, or store a long string and return a reference to it."""
        if len(text) <= _LONG:
            return text
        hash = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._insert("texts", hash, zlib.compress(text.encode()), new_only=True)
        return {"text": hash}

    def _add_token_texts(self, trajectory: Trajectory) -> None:
        if self.spell is None:
            return
        new = sampled_ids(trajectory) - self._spelt
        for id in sorted(new):
            self._insert("token_texts", id, replace_surrogates(self.spell([id])), new_only=True)
        self._spelt |= new


def _round_key(round: Round, by: str) -> str:
    """Return a key for a round's inputs: its settings, the tasks to avoid, and the explorer."""
    order = [round.model_dump(mode="json"), [task.id for task in round.known]]
    return digest([*order, by] if by else order)


def _pack(value: Any) -> bytes:
    return zlib.compress(canonical_json(value).encode())
