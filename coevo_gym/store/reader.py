"""What a run has stored, opened for reading only."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import Any

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Context, Round, RoundResult, Signal, Verdict
from coevo_gym.core.notes import Note, Notes
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory
from coevo_gym.core.trajectory_json import eval_trajectory_from_json, trajectory_from_json
from coevo_gym.store.evaluated import Evaluated, EvaluatedTask
from coevo_gym.store.folder import DAMAGED, decoding, storing
from coevo_gym.store.noted import COLUMNS, NoteCount, StoredNote, TurnCount, note_from_row
from coevo_gym.store.rows import (
    Decision,
    HeldTask,
    StoredRound,
    TaskCount,
    VerdictPlace,
)

SCHEMA_VERSION = 1
HOLD = "hold"
"""The gate that puts tasks aside until a person has looked at them."""


class RunReader:
    """Reads the database of a run. Nothing in the run's folder is made or changed.

    A run may write to it meanwhile. Each query opens the file anew, so none holds a writer up.

    Args:
        path: the file.

    Raises:
        StoreError: if it is missing or damaged, or is no run store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise StoreError(
                f"{path} is missing: it holds the run's tasks and rounds. A run makes it after its "
                "warm-up. If this run was further than that, put the file back, or train anew "
                "with --overwrite."
            )
        self._check_version(self._rows("PRAGMA user_version")[0][0])

    def check(self) -> None:
        """Read the whole file and check its structure.

        Raises:
            StoreError: if it is damaged.
        """
        found = self._rows("PRAGMA quick_check(1)")[0][0]
        if found != "ok":
            raise StoreError(f"Cannot use {self.path}: {shorten(found, 300)}. {DAMAGED}")

    def tasks(self, *, origin: str | None = None) -> list[Task]:
        """All stored tasks in the order they came, or those of one origin."""
        query = "SELECT body FROM tasks WHERE ? IS NULL OR origin = ? ORDER BY rowid"
        return [
            Task.from_json(self._decompress(row[0])) for row in self._rows(query, origin, origin)
        ]

    def rounds(self, arm: str | None = None) -> list[StoredRound]:
        """Rounds that were applied, in order, of one arm or all."""
        return self._rounds("? IS NULL OR arm = ?", arm, arm)

    def results(self, round_id: str) -> list[tuple[str, bytes]]:
        """What rounds of this id gave, as it is stored: by key, packed."""
        return self._rows("SELECT key, body FROM results WHERE round_id = ?", round_id)

    def round(self, arm: str, round_id: str) -> StoredRound:
        """One round of an arm.

        Raises:
            StoreError: if the arm has none of that id.
        """
        for found in self._rounds("arm = ? AND rounds.round_id = ?", arm, round_id):
            return found
        raise StoreError(f"{self.path} has no {round_id} of {arm}.")

    def task(self, id: str) -> Task | None:
        """The stored task with this id; None if there is none."""
        rows = self._rows("SELECT body FROM tasks WHERE id = ?", id)
        return Task.from_json(self._decompress(rows[0][0])) if rows else None

    def task_id(self, name_or_id: str) -> str | None:
        """The id of the stored task with this name or id; None if there is none."""
        rows = self._rows("SELECT id FROM tasks WHERE ? IN (name, id) ORDER BY rowid", name_or_id)
        return rows[0][0] if rows else None

    def task_names(self, begins: str) -> dict[str, str]:
        """Names, by id, of the stored tasks whose id begins so."""
        query = "SELECT id, name FROM tasks WHERE substr(id, 1, ?) = ? ORDER BY rowid"
        return dict(self._rows(query, len(begins), begins))

    def verdict_places(self, begins: str) -> list[VerdictPlace]:
        """Where the verdicts are whose draft, or whose built task, has an id that begins so."""
        query = (
            "SELECT draft_id, task_id, accepted, gate, round_id, position, key, arm, step "
            "FROM verdicts JOIN rounds USING (arm, round_id) WHERE substr(draft_id, 1, ?) = ? "
            "OR substr(task_id, 1, ?) = ? ORDER BY rounds.rowid, position"
        )
        rows = self._rows(query, len(begins), begins, len(begins), begins)
        return [
            VerdictPlace(draft_id, task_id, bool(accepted), *where)
            for draft_id, task_id, accepted, *where in rows
        ]

    def pooled(self) -> list[Task]:
        """The tasks that rounds have brought into some arm's pool, in the order they came."""
        query = "SELECT body FROM tasks WHERE id IN (SELECT task_id FROM lineage) ORDER BY rowid"
        return [Task.from_json(self._decompress(row[0])) for row in self._rows(query)]

    def rounds_of(self, task_id: str) -> list[tuple[str, str]]:
        """The arms whose pool a task joined, each with the round in which it did."""
        query = "SELECT DISTINCT arm, round_id FROM lineage WHERE task_id = ? ORDER BY rowid"
        return self._rows(query, task_id)

    def held(self, arm: str | None = None) -> list[HeldTask]:
        """Tasks that were held, of one arm or all, in the order of the rounds that found them."""
        query = (
            "SELECT arm, rounds.round_id, step, results.body FROM rounds JOIN results USING (key) "
            "WHERE ? IS NULL OR arm = ? ORDER BY rounds.rowid"
        )
        found = []
        for name, round_id, step, body in self._rows(query, arm, arm):
            result = self._unpack(body)
            tasks = [Task.model_validate(task) for task in result.get("held", ())]
            verdicts = {v["task_id"]: v for v in result["verdicts"] if v["gate"] == HOLD}
            found += [
                HeldTask(name, round_id, step, task, Verdict.model_validate(verdicts[task.id]))
                for task in tasks
            ]
        return found

    def decisions(self) -> dict[str, Decision]:
        """The latest decision about each task, by its id, in the order in which they were made."""
        if not self._has("decisions"):
            return {}  # a run of before there were any
        query = (
            "SELECT task_id, what, reason, at, body FROM decisions WHERE number IN "
            "(SELECT max(number) FROM decisions GROUP BY task_id) ORDER BY number"
        )
        return {
            id: Decision(
                id, what, reason, at, Verdict.model_validate(self._unpack(body)) if body else None
            )
            for id, what, reason, at, body in self._rows(query)
        }

    def joining(self, arm: str) -> list[tuple[Task, Verdict | None]]:
        """Tasks that people let into an arm, and that are not in it yet, in the order they did.

        Returns:
            Each task, with its verdict where it was imported.
        """
        let_in = [found for found in self.decisions().values() if found.what != "rejected"]
        if not let_in:
            return []
        joined = {row[0] for row in self._rows("SELECT task_id FROM lineage WHERE arm = ?", arm)}
        held = {found.task.id: found.task for found in self.held(arm)}
        query = "SELECT body FROM tasks WHERE id = ?"
        waiting = []
        for decision in let_in:
            if decision.task_id in joined:
                continue
            if decision.what == "imported":
                body = self._rows(query, decision.task_id)[0][0]
                waiting.append((Task.from_json(self._decompress(body)), decision.verdict))
            elif decision.task_id in held:
                waiting.append((held[decision.task_id], None))
        return waiting

    def signals(self, arm: str) -> list[Signal]:
        """An arm's signals, in order."""
        query = (
            "SELECT kind, task_id, group_id, position, evidence FROM signals WHERE arm = ? "
            "ORDER BY rowid"
        )
        return [self._signal(row) for row in self._rows(query, arm)]

    def signal_behind(self, arm: str, context: Context, step: int) -> Signal | None:
        """The signal that a context comes from; None if it was not kept, or there is none.

        It is the latest of the context's kind and task. Where more fired at once, the context is
        that of the first rollout that failed, if one did.

        Args:
            arm: name of the arm.
            context: of one of its rounds.
            step: the arm's step at which that round was applied.
        """
        query = (
            "SELECT kind, signals.task_id, group_id, position, evidence FROM signals "
            "LEFT JOIN trajectories USING (arm, group_id, position) "
            "WHERE arm = ? AND kind = ? AND signals.task_id = ? AND signals.step <= ? "
            "ORDER BY signals.step DESC, success = ? DESC, signals.rowid LIMIT 1"
        )
        rows = self._rows(query, arm, context.kind, context.task.id, step, int(context.success))
        return self._signal(rows[0]) if rows else None

    def notes(self, arm: str, kind: str | None = None) -> Notes:
        """What studies have noted about an arm's episodes, in order, of one kind or all."""
        if not self._has("notes"):
            return Notes()  # a run of before there were any
        query = (
            f"SELECT {COLUMNS} FROM notes WHERE arm = ? AND (? IS NULL OR kind = ?) "  # noqa: S608 (constants)
            "ORDER BY step, number"
        )
        return Notes(map(self._note, self._rows(query, arm, kind, kind)))

    def notes_when(self, arm: str, kind: str) -> list[StoredNote]:
        """An arm's notes of one kind in order, each with the step at which it was written."""
        if not self._has("notes"):
            return []
        query = (
            f"SELECT {COLUMNS}, step FROM notes WHERE arm = ? AND kind = ? "  # noqa: S608 (constants)
            "ORDER BY step, number"
        )
        rows = self._rows(query, arm, kind)
        return [StoredNote(row[-1], self._note(row[:-1])) for row in rows]

    def note_counts(self, arm: str | None = None) -> list[NoteCount]:
        """Notes by arm, step, kind and label, of one arm or all."""
        if not self._has("notes"):
            return []
        which = "arm, step, kind, label"
        query = (
            f"SELECT {which}, count(*) FROM notes WHERE ? IS NULL OR arm = ? "  # noqa: S608
            f"GROUP BY {which} ORDER BY {which}"
        )
        return [NoteCount(*row) for row in self._rows(query, arm, arm)]

    def turn_counts(self) -> list[TurnCount]:
        """Notes about turns by arm, kind, label and turn.

        A note is about a turn if its evidence says how many ``turns`` its episode has.
        """
        if not self._has("notes"):
            return []
        turns = "json_extract(evidence, '$.turns')"
        which = f"arm, kind, label, step_of_episode, {turns}"
        query = (
            f"SELECT {which}, count(*) FROM notes "  # noqa: S608 (constants)
            f"WHERE json_type(evidence, '$.turns') = 'integer' "
            f"AND step_of_episode >= 0 AND step_of_episode < {turns} "
            f"GROUP BY {which} ORDER BY {which}"
        )
        return [TurnCount(*row) for row in self._rows(query)]

    def task_counts(self, task_id: str | None = None) -> list[TaskCount]:
        """Return how often each arm trained on each task, or on one task."""
        query = (
            "SELECT arm, task_id, sum(episodes), sum(successes) FROM groups "
            "WHERE ? IS NULL OR task_id = ? GROUP BY arm, task_id"
        )
        return [TaskCount(*row) for row in self._rows(query, task_id, task_id)]

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

    def evaluated_tasks(self) -> list[EvaluatedTask]:
        """The tasks that were evaluated, in the order they came."""
        if not self._has("evaluated_tasks"):
            return []
        query = (
            "SELECT id, name, split, subset, scenario, instruction, tags FROM evaluated_tasks "
            "ORDER BY rowid"
        )
        rows = self._rows(query)
        with decoding(self.path):
            return [
                EvaluatedTask(id, name, split, subset, scenario, asked, tuple(json.loads(tags)))
                for id, name, split, subset, scenario, asked, tags in rows
            ]

    def evaluation_steps(self, arm: str) -> list[int]:
        """The steps at which an arm was evaluated, and each episode's end stored; in order."""
        if not self._has("evaluations"):
            return []  # a run of before these were stored
        query = "SELECT DISTINCT step FROM evaluations WHERE arm = ? ORDER BY step"
        return [row[0] for row in self._rows(query, arm)]

    def evaluation(self, arm: str, step: int) -> list[Evaluated]:
        """How each episode of an evaluation ended, in order."""
        query = (
            "SELECT task_id, success, score, end_reason, steps, sample FROM evaluations "
            "WHERE arm = ? AND step = ? ORDER BY rowid"
        )
        return [
            Evaluated(task_id, bool(success), *rest)
            for task_id, success, *rest in self._rows(query, arm, step)
        ]

    def eval_trajectory(
        self, arm: str, step: int, task_id: str, sample: int = 0
    ) -> EvalTrajectory | None:
        """What happened in an evaluation episode; None if that was not kept."""
        query = (
            "SELECT body FROM evaluations WHERE arm = ? AND step = ? AND task_id = ? "
            "AND sample = ? AND body IS NOT NULL"
        )
        rows = self._rows(query, arm, step, task_id, sample)
        if not rows:
            return None
        return eval_trajectory_from_json(self._with_texts(self._unpack(rows[0][0])))

    def _rounds(self, which: str, *values: Any) -> list[StoredRound]:
        query = (
            "SELECT arm, step, arm_env_steps, pool_size, rounds.body, results.body FROM rounds "  # noqa: S608
            f"JOIN results USING (key) WHERE {which} ORDER BY rounds.rowid"  # only constants
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
            for name, step, env_steps, pool_size, order, result in self._rows(query, *values)
        ]

    def _check_version(self, version: int) -> None:
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema {version}; this version of coevo_gym reads "
                f"{SCHEMA_VERSION}."
            )

    def _has(self, table: str) -> bool:
        """Whether a table is there, which a run of before there was one lacks."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", table))

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with storing(self.path), closing(self._open()) as connection:
            return connection.execute(query, values).fetchall()

    def _open(self) -> sqlite3.Connection:
        # A file that nobody writes to has no log beside it. To open it as one that may change would
        # make such a log, which a folder that is read-only cannot hold.
        written = self.path.with_name(f"{self.path.name}-wal").exists()
        how = "mode=ro" if written else "mode=ro&immutable=1"
        uri = f"{self.path.absolute().as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)

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

    def _signal(self, row: tuple[Any, ...]) -> Signal:
        kind, task_id, group_id, index, evidence = row
        place = {"task_id": task_id, "group_id": group_id, "index": index}
        with decoding(self.path):
            return Signal(kind=kind, **place, evidence=json.loads(evidence))

    def _note(self, row: tuple[Any, ...]) -> Note:
        with decoding(self.path):
            return note_from_row(row)

    def _unpack(self, body: bytes) -> Any:
        with decoding(self.path):
            return json.loads(self._decompress(body))

    def _decompress(self, body: bytes) -> bytes:
        with decoding(self.path):
            return zlib.decompress(body)
