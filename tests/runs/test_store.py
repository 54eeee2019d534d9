from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.advice import AdviceOrigin, AdviceState
from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Context, Round, RoundResult, Signal, Verdict
from coevo_gym.core.notes import Note, Notes
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import ChoiceDecision, EndReason, Group, Step, Trajectory, View
from coevo_gym.store.database import Record, RunStore
from coevo_gym.store.reader import RunReader
from coevo_gym.view.reader import ViewReader
from tests.toy import BENCHMARK

TASKS = BENCHMARK.tasks(Split.TRAIN)
LONG = "A page of text. " * 50


def evolved(parent: Task) -> Task:
    update = {"name": "", "instruction": f"{parent.instruction} Twice.", "origin": "evolved"}
    return parent.model_copy(update={**update, "parents": (parent.id,)})


def group(task: Task, number: int) -> Group:
    view = View(task.instruction, LONG, {"admissible": ("press red",)})
    decision = ChoiceDecision(view, ("press red", "done"), 0, -0.5)
    step = Step(LONG, LONG, "press red", decision, extras={"a": (1, 2)})
    members = tuple(
        Trajectory(
            task_id=task.id,
            steps=(step, Step("short", f"seen {i}", "done", reward=float(i), terminated=True)),
            score=i / 2,
            success=i == 1,
            end_reason=EndReason.SOLVED if i else EndReason.FAILED,
            group_id=f"group-{number}",
            policy_version=3,
            cue_ids=("exp-7", "") if i else (),
        )
        for i in range(2)
    )
    return Group(f"group-{number}", task, 2, members)


def fired(of: Group) -> Signal:
    evidence = {"outcomes": (0.0, 1.0)}
    kind = "boundary"
    return Signal(kind=kind, task_id=of.task.id, group_id=of.id, index=0, evidence=evidence)


CONTEXT = Context(kind="boundary", task=TASKS[0], actions=("done",), summary="1 of 2 succeeded.")
ROUND = Round(id="round-1", contexts=(CONTEXT,), budget=4, seed=5, known=TASKS[:2])
RESULT = RoundResult(
    round_id="round-1",
    accepted=(evolved(TASKS[0]),),
    verdicts=(
        Verdict(draft_id="a", accepted=False, gate="build", reason="bad", draft={"text": "x"}),
        Verdict(draft_id="b", accepted=True, task_id=evolved(TASKS[0]).id),
    ),
    env_steps=7,
    seconds=0.25,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "run.db")
    yield opened
    opened.close()


def bare(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, steps=tuple(replace(s, decision=None) for s in trajectory.steps))


def test_stored_groups_and_rounds_are_read_back_also_after_reopening(
    store: RunStore, tmp_path: Path
) -> None:
    groups = [group(TASKS[0], 0), group(TASKS[1], 1)]
    store.add_groups("a", 1, groups, [fired(groups[0])])
    store.add_round("a", 1, 99, 12, ROUND, RESULT)
    for reader in (store, RunStore(tmp_path / "run.db")):
        assert reader.trajectories("a") == [bare(t) for t in groups[0].trajectories]
        assert reader.trajectories("a", TASKS[1].id) == []
        assert reader.signals("a") == [fired(groups[0])]
        assert reader.signals("b") == []
        (applied,) = reader.rounds()
        assert (applied.arm, applied.step, applied.arm_env_steps, applied.pool_size) == (
            ("a", 1, 99, 12)
        )
        assert applied.round == ROUND.model_copy(update={"known": ()})
        assert applied.result == RESULT
        assert {task.id for task in reader.tasks()} == {
            TASKS[0].id,
            TASKS[1].id,
            RESULT.accepted[0].id,
        }
        assert reader.tasks(origin="evolved") == [RESULT.accepted[0]]
        assert [(c.task_id, c.episodes, c.successes) for c in reader.task_counts()] == sorted(
            (task.id, 2, 1) for task in TASKS[:2]
        )
    reader.close()


@pytest.mark.parametrize(
    ("record", "episodes", "signals"), [("all", 4, 1), ("signals", 2, 1), ("none", 0, 0)]
)
def test_the_recording_level_decides_what_is_stored(
    tmp_path: Path, record: Record, episodes: int, signals: int
) -> None:
    store = RunStore(tmp_path / "run.db", record=record)
    groups = [group(TASKS[0], 0), group(TASKS[1], 1)]
    store.add_groups("a", 1, groups, [fired(groups[1])])
    assert len(store.trajectories("a")) == episodes
    assert len(store.signals("a")) == signals
    assert len(store.task_counts()) == 2
    store.close()


def test_each_text_is_stored_once(store: RunStore, tmp_path: Path) -> None:
    groups = [group(TASKS[0], n) for n in range(20)]
    store.add_groups("a", 1, groups, [fired(one) for one in groups])
    database = sqlite3.connect(tmp_path / "run.db")
    assert database.execute("SELECT count(*) FROM texts").fetchone() == (1,)
    body = database.execute("SELECT max(length(body)) FROM trajectories").fetchone()[0]
    assert body < len(LONG)
    database.close()


def test_a_stored_result_is_found_only_for_the_same_round(store: RunStore) -> None:
    assert store.result(ROUND) is None
    store.add_result(ROUND, RESULT)
    assert store.result(ROUND) == RESULT
    assert store.result(ROUND.model_copy(update={"seed": 6})) is None
    assert store.result(ROUND.model_copy(update={"known": ()})) is None


def test_delete_after_deletes_later_steps_of_one_arm_only(store: RunStore) -> None:
    for arm in ("a", "b"):
        for step in (1, 2):
            one = group(TASKS[step], step)
            store.add_groups(arm, step, [one], [fired(one)])
            order = ROUND.model_copy(update={"id": f"round-{step}"})
            result = RESULT.model_copy(update={"round_id": order.id})
            store.add_round(arm, step, step, step, order, result)
    store.delete_after("a", 1)
    assert [(r.arm, r.step) for r in store.rounds()] == [("a", 1), ("b", 1), ("b", 2)]
    assert (len(store.trajectories("a")), len(store.trajectories("b"))) == (2, 4)
    assert (len(store.signals("a")), len(store.signals("b"))) == (1, 2)
    assert store.result(ROUND.model_copy(update={"id": "round-2"})) is not None
    store.delete_after("a", -1)
    assert not store.rounds("a")
    assert not store.trajectories("a")


def test_storing_the_same_step_twice_changes_nothing(store: RunStore) -> None:
    one = group(TASKS[0], 0)
    for _ in range(2):
        store.add_groups("a", 1, [one], [fired(one)])
        store.add_round("a", 1, 1, 1, ROUND, RESULT)
    assert len(store.trajectories("a")) == 2
    assert len(store.rounds()) == len(store.signals("a")) == 1


def test_a_full_disk_loses_no_acknowledged_writes(store: RunStore, tmp_path: Path) -> None:
    first = group(TASKS[0], 0)
    store.add_groups("a", 1, [first], [fired(first)])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages}")
    many = [group(task, n) for n, task in enumerate(TASKS, start=1)]
    with pytest.raises(StoreError, match=r"run.db: database or disk is full.*Free some space"):
        store.add_groups("a", 2, many, [fired(one) for one in many])
    assert len(RunStore(tmp_path / "run.db").trajectories("a")) == 2
    store._db.execute("PRAGMA max_page_count=1000000")
    store.add_groups("a", 2, many, [fired(one) for one in many])
    assert len(store.trajectories("a")) == 2 + 2 * len(many)


def test_a_file_that_is_not_a_run_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    path.write_text("not a database, and long enough to be seen as none" * 100)
    with pytest.raises(StoreError, match=r"run.db: file is not a database. The file is damaged"):
        RunStore(path)
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StoreError, match="has schema version 99"):
        RunStore(path)


def test_an_unreadable_row_of_the_database_is_explained(store: RunStore) -> None:
    store.add_tasks(TASKS[:2])
    store._db.execute("UPDATE tasks SET body = x'7878'")
    with pytest.raises(StoreError, match=r"A row in .*run.db cannot be read.*Restore a copy"):
        store.tasks()


def note(of: Group, index: int = 0, **fields: Any) -> Note:
    place = {"task_id": of.task.id, "group_id": of.id, "index": index}
    return Note(**{"kind": "turn_label", "label": "pass", **place, **fields})


class TestNotes:
    GROUPS = (group(TASKS[0], 0), group(TASKS[1], 1))
    NOTES = (
        note(GROUPS[0], 1, step=2, value=0.25, evidence={"turn": (1, {"a": "é"})}, source="replay"),
        note(GROUPS[0], label="state_mismatch"),
        note(GROUPS[1], kind="failure_mode", label="", source="model"),
    )

    def test_notes_are_read_back(self, store: RunStore) -> None:
        store.add_notes("a", 1, self.NOTES)
        store.add_notes("a", 2, self.NOTES[:1])
        store.add_notes("b", 1, ())
        for reader in (store, RunReader(store.path)):
            assert reader.notes("a") == Notes([*self.NOTES, self.NOTES[0]])
            assert reader.notes("a", "failure_mode") == Notes(self.NOTES[2:])
            assert reader.notes("b") == Notes()
            assert reader.note_counts() == [
                ("a", 1, "failure_mode", "", 1),
                ("a", 1, "turn_label", "pass", 1),
                ("a", 1, "turn_label", "state_mismatch", 1),
                ("a", 2, "turn_label", "pass", 1),
            ]

    def test_storing_a_step_again_replaces_its_notes(self, store: RunStore) -> None:
        store.add_notes("a", 1, self.NOTES)
        store.add_notes("a", 1, self.NOTES[1:])
        assert store.notes("a") == Notes(self.NOTES[1:])

    def test_delete_after_deletes_notes_of_later_steps(self, store: RunStore) -> None:
        for step in (1, 2, 3):
            store.add_notes("a", step, [note(self.GROUPS[0], value=step)])
            store.add_notes("b", step, [note(self.GROUPS[0], value=step)])
        store.delete_after("a", 1)
        assert [entry.value for entry in store.notes("a")] == [1]
        assert len(store.notes("b")) == 3

    def test_recording_level_none_stores_no_notes(self, tmp_path: Path) -> None:
        with closing(RunStore(tmp_path / "run.db", record="none")) as store:
            store.add_notes("a", 1, self.NOTES)
            assert store.notes("a") == Notes()


def test_advice_changes_are_read_back_and_deleted_with_later_steps(
    store: RunStore, tmp_path: Path
) -> None:
    origin = AdviceOrigin(texts={"content": "Look."}, task_id="t", group_id="g", index=1)
    added, measured = AdviceState(id="x", origin=origin), AdviceState(id="x", utility=0.5, groups=1)
    store.add_advice("a", 1, {"pool": [AdviceState(id="y")]})
    store.add_advice("a", 1, {"pool": [added]})  # a step that runs again
    store.add_advice("a", 2, {"pool": [measured]})
    store.add_advice("b", 2, {"pool": [measured]})
    reader = ViewReader(store.path)
    assert reader.advice("a") == [(1, "pool", added), (2, "pool", measured)]
    store.delete_after("a", 1)
    assert reader.advice("a") == [(1, "pool", added)]
    assert len(reader.advice("b")) == 1
    with closing(RunStore(tmp_path / "none.db", record="none")) as none:
        none.add_advice("a", 1, {"pool": [added]})
        assert ViewReader(none.path).advice("a") == []


def test_an_episode_is_stored_with_its_shown_texts_interface_and_cues(store: RunStore) -> None:
    original = group(TASKS[0], 0)
    steps = tuple(
        replace(s, shown=f"{LONG} {n}") for n, s in enumerate(original.trajectories[0].steps)
    )
    trajectory = replace(
        original.trajectories[0], steps=steps, interface="remark@2", cue_ids=("abstain",)
    )
    store.add_groups("a", 1, [replace(original, trajectories=(trajectory,))], [fired(original)])
    assert store.trajectories("a") == [bare(trajectory)]
