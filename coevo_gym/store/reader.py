"""Read-only access to the data that a run has stored."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Context, Round, RoundResult, Signal, Verdict
from coevo_gym.core.notes import Note, Notes
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory
from coevo_gym.core.trajectory_json import eval_trajectory_from_json, trajectory_from_json
from coevo_gym.store.folder import (
    DAMAGED,
    connect_read_only,
    raise_decode_errors,
    raise_store_errors,
)
from coevo_gym.store.rows import (
    COLUMNS,
    HOLD,
    Decision,
    HeldTask,
    NoteCount,
    StoredNote,
    StoredRound,
    TaskCount,
    VerdictPlace,
    note_from_row,
)


class Evaluated(NamedTuple):
    """The result of an evaluation episode.

    Attributes:
        task_id: id of its task.
        success: binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: reason why it ended.
        steps: number of env steps taken.
        sample: index of the episode among those of its task, from 0.
        failure: the benchmark's kind of failure, such as ``state_mismatch``, or "".
        failed_turn: number of the turn that failed, from 1; None if the task has a single request.
    """

    task_id: str
    success: bool
    score: float
    end_reason: str
    steps: int
    sample: int = 0
    failure: str = ""
    failed_turn: int | None = None


class EvaluatedTask(NamedTuple):
    """The stored fields of an evaluated task, excluding the verifier and the solution.

    Attributes:
        split: split of the task: train, validation or test.
        subset: name of the benchmark's subset, or "".
        scenario: unit that belongs entirely to one split.
        tags: topics of the task, each as ``"kind:value"``.
    """

    id: str
    name: str
    split: str
    subset: str
    scenario: str
    instruction: str
    tags: tuple[str, ...]


SCHEMA_VERSION = 4
"""Version of the schema."""
_AT_ONCE = 500


def text_hashes(trajectory: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hash of each long text that a stored trajectory refers to."""
    for step in trajectory["steps"]:
        for field in ("observation", "shown"):
            if isinstance(step[field], Mapping):
                yield step[field]["text"]
    transcript = trajectory.get("transcript") or {}
    for text in (
        *(text for _, text in transcript.get("messages", ())),
        *transcript.get("tools", ()),
    ):
        if isinstance(text, Mapping):
            yield text["text"]


def restore_texts(trajectory: Any, texts: Mapping[str, str]) -> Any:
    """Replace each reference to a long text in a stored trajectory by the text, in place."""

    def restored(text: Any) -> Any:
        return texts[text["text"]] if isinstance(text, Mapping) else text

    for step in trajectory["steps"]:
        for field in ("observation", "shown"):
            step[field] = restored(step[field])
    if transcript := trajectory.get("transcript"):
        messages = transcript["messages"]
        transcript["messages"] = [[role, restored(text)] for role, text in messages]
        transcript["tools"] = [restored(text) for text in transcript["tools"]]
    return trajectory


class RunReader:
    """A read-only interface to a run's database. It leaves the run's folder unchanged.

    A run may write to the database at the same time. Each query opens the file again, so that no
    query blocks a writer.

    Raises:
        StoreError: if the file is missing, damaged or not a run store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked: dict[str, str] = {}
        if not path.is_file():
            raise StoreError(
                f"{path}, which contains the run's tasks and rounds, is missing. It is created at "
                "the end of the warm-up. If the run was already past its warm-up, restore the file "
                "or train again with --overwrite."
            )
        self._check_version(self._rows("PRAGMA user_version")[0][0])

    def check_integrity(self) -> None:
        """Read the whole database file and check that it is intact.

        Raises:
            StoreError: if the file is damaged.
        """
        result = self._rows("PRAGMA integrity_check(1)")[0][0]
        if result != "ok":
            raise StoreError(f"Cannot use {self.path}: {shorten(result, 300)}. {DAMAGED}")
        tables = (
            "SELECT t.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c "
            "WHERE t.type = 'table' AND c.name = 'checksum' ORDER BY t.name"
        )
        for (table,) in self._rows(tables):
            wrong = f"checksum IS NOT {self._checksum_expression(table)} LIMIT 1"
            for (row,) in self._rows(f"SELECT rowid FROM {table} WHERE {wrong}"):  # noqa: S608
                raise self._checksum_error(f"row {row} of {table}")

    def tasks(self, *, origin: str | None = None) -> list[Task]:
        """Return the stored tasks in insertion order, optionally limited to one origin."""
        query = "SELECT body FROM tasks WHERE ? IS NULL OR origin = ? ORDER BY rowid"
        return self._select_tasks(query, origin, origin)

    def rounds(self, arm: str | None = None) -> list[StoredRound]:
        """Return the applied rounds in order, for one arm or all arms."""
        return self._select_rounds("? IS NULL OR arm = ?", arm, arm)

    def packed_results(self, round_id: str) -> list[tuple[str, bytes]]:
        """Return the key and the compressed body of each result stored under a round id."""
        return self._rows("SELECT key, body FROM results WHERE round_id = ?", round_id)

    def round(self, arm: str, round_id: str) -> StoredRound:
        """Return one round of an arm.

        Raises:
            StoreError: if the arm has no round with this id.
        """
        for entry in self._select_rounds("arm = ? AND rounds.round_id = ?", arm, round_id):
            return entry
        raise StoreError(f"{self.path} has no round {round_id} for arm {arm}.")

    def task(self, id: str) -> Task | None:
        """Return the stored task with this id, or None if there is none."""
        return next(iter(self._select_tasks("SELECT body FROM tasks WHERE id = ?", id)), None)

    def task_id(self, name_or_id: str) -> str | None:
        """Return the id of the stored task with this name or id, or None if there is none."""
        rows = self._rows("SELECT id FROM tasks WHERE ? IN (name, id) ORDER BY rowid", name_or_id)
        return rows[0][0] if rows else None

    def task_names(self, begins: str) -> dict[str, str]:
        """Map each stored task id that starts with the given prefix to the task's name."""
        query = "SELECT id, name FROM tasks WHERE substr(id, 1, ?) = ? ORDER BY rowid"
        return dict(self._rows(query, len(begins), begins))

    def verdict_places(self, begins: str) -> list[VerdictPlace]:
        """Locate the stored verdicts whose draft id or task id starts with the given prefix."""
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

    def pool_tasks(self) -> list[Task]:
        """Return the tasks that rounds added to any arm's pool, in insertion order."""
        query = "SELECT body FROM tasks WHERE id IN (SELECT task_id FROM lineage) ORDER BY rowid"
        return self._select_tasks(query)

    def rounds_that_added(self, task_id: str) -> list[tuple[str, str]]:
        """Return the arms whose pools a task has joined, each with the round that added it."""
        query = "SELECT DISTINCT arm, round_id FROM lineage WHERE task_id = ? ORDER BY rowid"
        return self._rows(query, task_id)

    def tasks_on_hold(self, arm: str | None = None) -> list[HeldTask]:
        """Return the tasks held for review in one arm or in all arms, in round order."""
        query = (
            "SELECT arm, rounds.round_id, step, results.body FROM rounds JOIN results USING (key) "
            "WHERE ? IS NULL OR arm = ? ORDER BY rounds.rowid"
        )
        drafts = []
        for name, round_id, step, body in self._rows(query, arm, arm):
            result = self._unpack(body)
            tasks = [Task.model_validate(task) for task in result.get("held", ())]
            verdicts = {v["task_id"]: v for v in result["verdicts"] if v["gate"] == HOLD}
            drafts += [
                HeldTask(name, round_id, step, task, Verdict.model_validate(verdicts[task.id]))
                for task in tasks
            ]
        return drafts

    def decisions(self) -> dict[str, Decision]:
        """Return the latest decision on each task, keyed by task id."""
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

    def tasks_to_join(self, arm: str) -> list[tuple[Task, Verdict | None]]:
        """Return the tasks that the user has admitted but that have not joined the arm yet.

        Returns:
            Each task in order of the decisions, with its verdict if it was imported.
        """
        let_in = [one for one in self.decisions().values() if one.what != "rejected"]
        if not let_in:
            return []
        ids = {row[0] for row in self._rows("SELECT task_id FROM lineage WHERE arm = ?", arm)}
        tasks = {one.task.id: one.task for one in self.tasks_on_hold(arm)}
        waiting = list[tuple[Task, Verdict | None]]()
        for decision in let_in:
            if decision.task_id in ids:
                continue
            if decision.what == "imported":
                (task,) = self._select_tasks(
                    "SELECT body FROM tasks WHERE id = ?", decision.task_id
                )
                waiting.append((task, decision.verdict))
            elif decision.task_id in tasks:
                waiting.append((tasks[decision.task_id], None))
        return waiting

    def signals(self, arm: str) -> list[Signal]:
        """Return an arm's signals in order."""
        query = (
            "SELECT kind, task_id, group_id, position, evidence FROM signals WHERE arm = ? "
            "ORDER BY rowid"
        )
        return [self._signal_from_row(row) for row in self._rows(query, arm)]

    def signal_behind(self, arm: str, context: Context, step: int) -> Signal | None:
        """Return the signal that led to an exploration context, or None if it was not stored.

        This is the latest signal with the context's kind and task. If several were emitted at once,
        the context belongs to the first failed rollout, if any. The context must be from a round
        that the arm applied at this step.
        """
        query = (
            "SELECT kind, signals.task_id, group_id, position, evidence FROM signals "
            "LEFT JOIN trajectories USING (arm, group_id, position) "
            "WHERE arm = ? AND kind = ? AND signals.task_id = ? AND signals.step <= ? "
            "ORDER BY signals.step DESC, success = ? DESC, signals.rowid LIMIT 1"
        )
        rows = self._rows(query, arm, context.kind, context.task.id, step, int(context.success))
        return self._signal_from_row(rows[0]) if rows else None

    def notes(self, arm: str, kind: str | None = None) -> Notes:
        """Return the notes on an arm's episodes in order, optionally limited to one kind."""
        query = (
            f"SELECT {COLUMNS} FROM notes "  # noqa: S608 (constants)
            "WHERE arm = ? AND (? IS NULL OR kind = ?) ORDER BY step, number"
        )
        return Notes(map(self._note_from_row, self._rows(query, arm, kind, kind)))

    def notes_with_steps(self, arm: str, kind: str) -> list[StoredNote]:
        """Return an arm's notes of one kind in order, each with its learner step."""
        query = (
            f"SELECT {COLUMNS}, step FROM notes "  # noqa: S608 (constants)
            "WHERE arm = ? AND kind = ? ORDER BY step, number"
        )
        rows = self._rows(query, arm, kind)
        return [StoredNote(row[-1], self._note_from_row(row[:-1])) for row in rows]

    def note_counts(self) -> list[NoteCount]:
        """Count the notes of all arms by arm, step, kind and label."""
        query = (
            "SELECT arm, step, kind, label, count(*) FROM notes "
            "GROUP BY arm, step, kind, label ORDER BY arm, step, kind, label"
        )
        return [NoteCount(*row) for row in self._rows(query)]

    def task_counts(self, task_id: str | None = None) -> list[TaskCount]:
        """Return how often each arm trained on each task, optionally limited to one task."""
        query = (
            "SELECT arm, task_id, sum(episodes), sum(successes) FROM groups "
            "WHERE ? IS NULL OR task_id = ? GROUP BY arm, task_id"
        )
        return [TaskCount(*row) for row in self._rows(query, task_id, task_id)]

    def trajectories(self, arm: str, task_id: str | None = None) -> list[Trajectory]:
        """Return an arm's stored episodes in order, for one task or all tasks.

        They are complete except for decisions over choices, for which only the chosen action is
        stored.
        """
        query = (
            "SELECT body FROM trajectories WHERE arm = ? AND (? IS NULL OR task_id = ?) "
            "ORDER BY step, rowid"
        )
        rows = self._rows(query, arm, task_id, task_id)
        return [trajectory_from_json(self._restore_texts(self._unpack(row[0]))) for row in rows]

    def evaluated_tasks(self) -> list[EvaluatedTask]:
        """Return the evaluated tasks in insertion order."""
        query = (
            "SELECT id, name, split, subset, scenario, instruction, tags FROM evaluated_tasks "
            "ORDER BY rowid"
        )
        rows = self._rows(query)
        with raise_decode_errors(self.path):
            return [
                EvaluatedTask(id, name, split, subset, scenario, asked, tuple(json.loads(tags)))
                for id, name, split, subset, scenario, asked, tags in rows
            ]

    def evaluation_steps(self, arm: str) -> list[int]:
        """Return the steps at which an arm has a stored evaluation, in order."""
        query = "SELECT DISTINCT step FROM evaluations WHERE arm = ? ORDER BY step"
        return [row[0] for row in self._rows(query, arm)]

    def evaluation(self, arm: str, step: int) -> list[Evaluated]:
        """Return an evaluation's results in order, one per episode."""
        intact = f"checksum IS {self._checksum_expression('evaluations')}"
        query = (
            f"SELECT {intact}, task_id, success, score, end_reason, steps, sample, "  # noqa: S608
            "failure, failed_turn FROM evaluations WHERE arm = ? AND step = ? ORDER BY rowid"
        )
        episodes = []
        for sound, task_id, success, *rest in self._rows(query, arm, step):
            if not sound:
                raise self._checksum_error(f"the result of task {task_id}")
            episodes.append(Evaluated(task_id, bool(success), *rest))
        return episodes

    def outcomes(self, arm: str, *steps: int) -> dict[str, list[bool]]:
        """Return whether each evaluation episode succeeded, keyed by task id."""
        by_task: dict[str, list[bool]] = {}
        for step in steps:
            for episode in self.evaluation(arm, step):
                by_task.setdefault(episode.task_id, []).append(episode.success)
        return by_task

    def eval_trajectory(
        self, arm: str, step: int, task_id: str, sample: int = 0
    ) -> EvalTrajectory | None:
        """Return the trajectory of an evaluation episode, or None if it was not stored."""
        body = self._eval_body(arm, step, task_id, sample)
        return body and eval_trajectory_from_json(self._restore_texts(body))

    def _eval_body(self, arm: str, step: int, task_id: str, sample: int) -> Any:
        """Return the JSON of an evaluation episode, with references to long texts, or None."""
        query = (
            "SELECT body FROM evaluations WHERE arm = ? AND step = ? AND task_id = ? "
            "AND sample = ? AND body IS NOT NULL"
        )
        rows = self._rows(query, arm, step, task_id, sample)
        return self._unpack(rows[0][0]) if rows else None

    def _select_rounds(self, which: str, *values: Any) -> list[StoredRound]:
        query = (
            "SELECT arm, step, arm_env_steps, pool_size, rounds.body, results.body "  # noqa: S608
            f"FROM rounds JOIN results USING (key) WHERE {which} ORDER BY rounds.rowid"  # constants
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

    def _checksum_expression(self, table: str) -> str:
        """Return an SQL expression for the checksum of a row in a table."""
        if table not in self._checked:
            query = (
                "SELECT name FROM pragma_table_info(?) WHERE type <> 'BLOB' AND name <> 'checksum' "
                "ORDER BY cid"
            )
            columns = ", ".join(name for (name,) in self._rows(query, table))
            self._checked[table] = f"checksum_of({columns})"
        return self._checked[table]

    def _checksum_error(self, what: str) -> StoreError:
        return StoreError(f"Cannot use {self.path}: {what} does not match its checksum. {DAMAGED}")

    def _check_version(self, version: int) -> None:
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, but this version of coevo_gym reads "
                f"{SCHEMA_VERSION}. Use the version of coevo_gym that created it."
            )

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with raise_store_errors(self.path), closing(connect_read_only(self.path)) as connection:
            return connection.execute(query, values).fetchall()

    def _select_tasks(self, query: str, *values: Any) -> list[Task]:
        """Return the tasks that a query selects."""
        return [Task.from_json(self._decompress(row[0])) for row in self._rows(query, *values)]

    def _restore_texts(self, trajectory: Any) -> dict[str, Any]:
        texts = self.texts(text_hashes(trajectory))
        restored: dict[str, Any] = restore_texts(trajectory, texts)
        return restored

    def texts(self, hashes: Iterable[str]) -> dict[str, str]:
        """Return long texts that are stored once, keyed by hash.

        Raises:
            StoreError: if a text is missing or damaged.
        """
        wanted = list(dict.fromkeys(hashes))
        bodies: dict[str, bytes] = {}
        for first in range(0, len(wanted), _AT_ONCE):
            some = wanted[first : first + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT hash, body FROM texts WHERE hash IN ({marks})"  # noqa: S608 (marks)
            bodies |= dict(self._rows(query, *some))
        for hash in wanted:
            if hash not in bodies:
                raise StoreError(f"The text {hash} is missing from {self.path}. {DAMAGED}")
        return {hash: self._decompress(body).decode() for hash, body in bodies.items()}

    def _signal_from_row(self, row: tuple[Any, ...]) -> Signal:
        kind, task_id, group_id, index, evidence = row
        place = {"task_id": task_id, "group_id": group_id, "index": index}
        with raise_decode_errors(self.path):
            return Signal(kind=kind, **place, evidence=json.loads(evidence))

    def _note_from_row(self, row: tuple[Any, ...]) -> Note:
        with raise_decode_errors(self.path):
            return note_from_row(row)

    def _unpack(self, body: bytes) -> Any:
        with raise_decode_errors(self.path):
            return json.loads(self._decompress(body))

    def _decompress(self, body: bytes) -> bytes:
        with raise_decode_errors(self.path):
            return zlib.decompress(body)
