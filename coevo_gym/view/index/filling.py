"""Incremental updates to an index from a run's database."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coevo_gym.core.advice import advised
from coevo_gym.core.evolution import Context, asked_for
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.curricula.signals import UNGUIDED
from coevo_gym.store.reader import HOLD
from coevo_gym.view.query import fold
from coevo_gym.view.rows import brief

MOST_WORDS = 4000
"""Maximum number of characters of an episode's actions that can be searched."""

_MARKED = ("trajectories", "groups", "signals", "tasks", "lineage", "rounds", "advantages")
_FILLED = ("trajectories", "words", "groups", "signals", "tasks", "lineage", "rounds", "drafts")
_FINGERPRINTS = {
    "groups": "count(*), coalesce(max(rowid), 0), total(step), total(successes), total(score)",
    "rounds": "count(*), coalesce(max(rowid), 0), total(step), total(arm_env_steps)",
    "lineage": "count(*), coalesce(max(rowid), 0)",
}

Db = sqlite3.Connection


def forget(db: Db) -> None:
    """Delete everything from an index."""
    for table in (*_FILLED, "meta"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608 (constants)


def is_of(db: Db) -> bool:
    """Return True if the index still matches the run's database.

    A resumed run discards all data after its last checkpoint and writes new data.
    """
    held = get(db, "fingerprint")
    return held is None or held == _fingerprint(db, json.loads(get(db, "marks") or "{}"))


def take_in(db: Db) -> bool:
    """Copy new rows from the run's database to the index. Return True if there were any."""
    marks: dict[str, int] = json.loads(get(db, "marks") or "{}")
    there = {row[0] for row in db.execute("SELECT name FROM run.sqlite_master")}
    before = dict(marks)
    ends = {
        table: db.execute(
            f"SELECT coalesce(max(rowid), 0) FROM run.{table}"  # noqa: S608
        ).fetchone()[0]
        for table in _MARKED
        if table in there
    }
    new = {table: marks.get(table, 0) for table, end in ends.items() if end != marks.get(table, 0)}
    if not new:
        return False
    if "tasks" in new:
        _take_tasks(db, new["tasks"])
    if "trajectories" in new:
        _take_trajectories(db, new["trajectories"], advantages="advantages" in there)
    if "groups" in new:
        _take_groups(db, new["groups"])
    if "signals" in new:
        _take_signals(db, new["signals"])
    if (
        "advantages" in new and new.get("trajectories") != 0
    ):  # earlier advantages were added with their episodes
        _take_advantages(db, new["advantages"])
    if "lineage" in new:
        db.execute(
            "INSERT INTO lineage SELECT arm, round_id, task_id, parent_id FROM run.lineage "
            "WHERE rowid > ?",
            (new["lineage"],),
        )
    if "rounds" in new:
        _take_rounds(db, new["rounds"])
    put(db, "marks", json.dumps({**before, **ends}))
    put(db, "fingerprint", _fingerprint(db, ends))
    put(db, "revision", int(get(db, "revision") or 0) + 1)
    return True


def read_bodies(db: Db, most: int) -> bool:
    """Add the actions of the next batch of episodes to the index. Return True if more remain."""
    since = int(get(db, "read") or 0)
    end = json.loads(get(db, "marks") or "{}").get("trajectories", 0)
    query = (
        "SELECT rowid, body FROM run.trajectories WHERE rowid > ? AND rowid <= ? "
        "ORDER BY rowid LIMIT ?"
    )
    rows = db.execute(query, (since, end, most)).fetchall()
    found = [(number, _said_in(body)) for number, body in rows]
    db.executemany(
        "INSERT OR REPLACE INTO words VALUES (?, ?)",
        [(number, said.text) for number, said in found],
    )
    db.executemany(
        "UPDATE trajectories SET errors = ?, advice = ? WHERE number = ?",
        [(said.errors, between_commas(said.advice), number) for number, said in found],
    )
    put(db, "read", rows[-1][0] if rows else end)
    return len(rows) == most


def get(db: Db, key: str) -> Any:
    """Return a value from the index's metadata, or None if it is not set."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def put(db: Db, key: str, value: Any) -> None:
    """Store a value in the index's metadata."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def unpack(body: bytes) -> Any:
    """Decompress a row and return its JSON value."""
    return json.loads(zlib.decompress(body))


def _fingerprint(db: Db, marks: Mapping[str, int]) -> str:
    """Return a fingerprint of the rows copied so far, to detect rewritten rows."""
    found = [
        db.execute(
            f"SELECT {numbers} FROM run.{table} WHERE rowid <= ?",  # noqa: S608 (constants)
            (marks.get(table, 0),),
        ).fetchone()
        for table, numbers in _FINGERPRINTS.items()
    ]
    return json.dumps(found)


def _take_tasks(db: Db, since: int) -> None:
    db.execute(
        "INSERT OR IGNORE INTO tasks SELECT rowid, id, name, origin, split, brief(instruction), "
        "fold(name || ' ' || id || ' ' || instruction) FROM run.tasks WHERE rowid > ?",
        (since,),
    )


def _take_trajectories(db: Db, since: int, *, advantages: bool) -> None:
    mean, join = "NULL", ""
    if advantages:
        mean = "a.mean"
        join = "LEFT JOIN run.advantages AS a USING (arm, group_id, position) "
    db.execute(
        "INSERT OR REPLACE INTO trajectories "  # noqa: S608 (constants)
        "SELECT t.rowid, t.arm, t.step, t.group_id, "
        "t.position, t.task_id, t.policy_version, t.success, t.score, t.end_reason, t.steps, '', "
        f"NULL, '', {mean} FROM run.trajectories AS t {join}WHERE t.rowid > ?",
        (since,),
    )


def _take_groups(db: Db, since: int) -> None:
    db.execute(
        "INSERT OR REPLACE INTO groups SELECT g.rowid, arm, id, step, task_id, size, episodes, "
        "successes, score, '', EXISTS (SELECT 1 FROM trajectories AS t WHERE t.arm = g.arm "
        "AND t.group_id = g.id) FROM run.groups AS g WHERE g.rowid > ?",
        (since,),
    )


def _take_signals(db: Db, since: int) -> None:
    query = "SELECT arm, group_id, position, step, kind FROM run.signals WHERE rowid > ?"
    of_episode: dict[tuple[str, str, int], list[str]] = {}
    of_group: dict[tuple[str, str], set[str]] = {}
    counts: Counter[tuple[str, int, str]] = Counter()
    for arm, group, position, step, kind in db.execute(query, (since,)):
        of_episode.setdefault((arm, group, position), []).append(kind)
        of_group.setdefault((arm, group), set()).add(kind)
        counts[arm, step, kind] += 1
    db.executemany(
        "UPDATE trajectories SET kinds = ? WHERE arm = ? AND group_id = ? AND position = ?",
        [(between_commas(kinds), *place) for place, kinds in of_episode.items()],
    )
    db.executemany(
        "UPDATE groups SET kinds = ? WHERE arm = ? AND id = ?",
        [(between_commas(sorted(kinds)), *place) for place, kinds in of_group.items()],
    )
    db.executemany(
        "INSERT INTO signals VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(*place, count) for place, count in counts.items()],
    )


def _take_advantages(db: Db, since: int) -> None:
    db.execute(
        "UPDATE trajectories SET advantage = a.mean FROM run.advantages AS a WHERE a.rowid > ? "
        "AND trajectories.arm = a.arm AND trajectories.group_id = a.group_id "
        "AND trajectories.position = a.position",
        (since,),
    )


def _take_rounds(db: Db, since: int) -> None:
    query = (
        "SELECT o.rowid, o.arm, o.round_id, o.step, o.arm_env_steps, o.pool_size, o.key, o.body, "
        "r.body FROM run.rounds AS o JOIN run.results AS r USING (key) WHERE o.rowid > ? "
        "ORDER BY o.rowid"
    )
    for number, arm, id, step, env_steps, pool, key, order, result in db.execute(query, (since,)):
        told = _Told(unpack(order), unpack(result), step)
        place = (number, arm, id, step, env_steps, pool)
        db.execute(
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*place, json.dumps(told.row())),
        )
        shared = "SELECT 1 FROM drafts WHERE key = ? AND first"
        if told.first and db.execute(shared, (key,)).fetchone():
            db.execute("UPDATE drafts SET arms = arms || ? WHERE key = ?", (f"{arm},", key))
            continue
        db.executemany(
            "INSERT INTO drafts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (key, f",{arm},", id, step, int(told.first), *draft)
                for draft in told.drafts(step, id)
            ],
        )


class _Told:
    """A parser for the JSON of one evolution round."""

    def __init__(self, order: Mapping[str, Any], result: Mapping[str, Any], step: int) -> None:
        self._order, self._result = order, result
        self._contexts: Sequence[Mapping[str, Any]] = order.get("contexts", ())
        self.first = step == 0 and (order.get("n_enough", 0) > 0 or not self._contexts)

    def row(self) -> dict[str, Any]:
        """Return this round's row in the list of rounds. The index stores the row as JSON."""
        judged = [verdict for verdict in self._result["verdicts"] if verdict["draft_id"]]
        rejected = Counter(
            verdict["gate"]
            for verdict in judged
            if not verdict["accepted"] and verdict["gate"] != HOLD
        )
        usage = {name: Usage(**used) for name, used in self._result.get("usage", {}).items()}
        spent = sum(usage.values(), NO_USAGE)
        return {
            "first": self.first,
            "kinds": dict(Counter(context["kind"] for context in self._contexts)),
            "contexts": len(self._contexts) or self._order.get("n_unguided", 0),
            "drafts": len(judged),
            "accepted": len(self._result.get("accepted", ())),
            "held": len(self._result.get("held", ())),
            "rejected": dict(rejected.most_common()),
            "steps_spent": self._result.get("env_steps", 0),
            "gate_steps": self._result.get("gate_steps", 0),
            "seconds": self._result.get("seconds", 0.0),
            "calls": spent.requests,
            "tokens": spent.tokens,
            "usd": spent.usd,
            "usage": {name: used.model_dump() for name, used in usage.items()},
        }

    def drafts(self, step: int, round_id: str) -> Iterator[tuple[Any, ...]]:
        """Yield one index row for each draft; the first column is the draft's position."""
        explored = [one["context"] for one in self._result.get("explored", ())]
        kinds = {context_id(context): context["kind"] for context in (*self._contexts, *explored)}
        usual = "" if self._contexts else UNGUIDED
        for position, verdict in enumerate(self._result["verdicts"]):
            if not verdict["draft_id"]:
                continue
            asked = asked_for(verdict.get("draft", {}), verdict.get("proposal", {}))
            words = " ".join(
                [verdict["draft_id"], verdict.get("gate", ""), verdict.get("reason", "")]
            )
            yield (
                position,
                verdict["draft_id"],
                int(verdict["accepted"]),
                verdict.get("gate", ""),
                verdict.get("reason", ""),
                kinds.get(verdict.get("context_id", ""), usual),
                verdict.get("context_id", ""),
                verdict.get("task_id", ""),
                brief(asked),
                fold(f"{words} {asked}"),
            )


def context_id(context: Mapping[str, Any]) -> str:
    """Compute a context's id from its JSON."""
    return Context.model_validate(context).id


def between_commas(names: Sequence[str]) -> str:
    """Join names into a string such as ``,a,b,``."""
    return f",{','.join(dict.fromkeys(names))}," if names else ""


def between(text: str | None) -> tuple[str, ...]:
    """Return the names in a string such as ``,a,b,``."""
    return tuple(name for name in (text or "").split(",") if name)


class _Said(NamedTuple):
    """Data extracted from a stored episode for the index.

    Attributes:
        text: searchable actions.
        errors: number of actions that had no effect.
        advice: ids of the advice that the episode's cues name.
    """

    text: str = ""
    errors: int = 0
    advice: tuple[str, ...] = ()


def _said_in(body: bytes) -> _Said:
    try:
        episode = unpack(body)
        steps = episode["steps"]
        actions = " ".join(str(step["action"]) for step in steps)
        return _Said(
            fold(actions[:MOST_WORDS]),
            sum(bool(step.get("error_kind")) for step in steps),
            advised(episode.get("cue_ids", ())),
        )
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return _Said()  # a damaged row, reported on its page
