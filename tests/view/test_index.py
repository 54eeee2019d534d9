"""The index of a run: kept up while it is written, made anew when it was rewound or damaged."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Signal
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.api import answer
from coevo_gym.view.filters import TRAJECTORIES, select
from coevo_gym.view.index import schema
from coevo_gym.view.index.index import Index
from coevo_gym.view.library import Library
from coevo_gym.view.model.trajectory_list import (
    TrajectoryRow,
    all_trajectories,
    find_trajectories,
)
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import Damaged
from coevo_gym.view.shelf import Shelf
from tests.toy import BENCHMARK
from tests.view.sample import EVAL, RUN

TASKS = BENCHMARK.tasks("train")  # type: ignore[arg-type]


def group(number: int, *, k: int = 2, success: bool = True) -> Group:
    task = TASKS[number % len(TASKS)]
    episodes = tuple(
        Trajectory(
            task_id=task.id,
            steps=(
                Step("a room", "a room", f"tickle toe-{number}", error_kind="no_button" * place),
            ),
            score=float(success),
            success=success,
            end_reason=EndReason.SOLVED if success else EndReason.FAILED,
            group_id=f"group-{number}",
        )
        for place in range(k)
    )
    return Group(f"group-{number}", task, k, episodes)


def fired(number: int, kind: str = "boundary", place: int = 0) -> Signal:
    return Signal(kind=kind, task_id=TASKS[0].id, group_id=f"group-{number}", index=place)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.manifest.write_text("{}")
    return folder


@pytest.fixture
def store(run: RunFolder) -> Iterator[RunStore]:
    with closing(RunStore(run.database, record="all")) as opened:
        yield opened


def rows_of(index: Index, query: str = "") -> list[TrajectoryRow]:
    return list(find_trajectories(index, Query.read(f"per_page=500&{query}")).rows)


def test_what_a_run_writes_is_taken_in_while_it_does(run: RunFolder, store: RunStore) -> None:
    index = Index(run)
    assert index.refresh() >= 0
    assert rows_of(index) == []
    before = index.revision
    for step in range(1, 4):
        number = 2 * step
        store.add_groups("a", step, [group(number), group(number + 1)], [fired(number)])
        assert index.refresh() > before
        before = index.revision
        assert len(rows_of(index)) == 4 * step
        assert [row.group for row in rows_of(index, "signal=boundary")] == [
            f"group-{2 * one}" for one in range(1, step + 1)
        ]
    assert index.refresh() == before  # nothing new
    store.add_advantages("a", 3, [group(6)], [[1.5, -0.5]])
    index.refresh()
    assert [row.advantage for row in rows_of(index, "group=group-6")] == [1.5, -0.5]


def test_a_page_leaves_out_what_a_rewind_removes_meanwhile(
    run: RunFolder, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_groups("a", 1, [group(1)], [])
    index = Index(run)
    index.refresh()
    read = index.rows
    rewound = lambda *query: (read(*query), store.rewind("a", 0), index.refresh())[0]  # noqa: E731
    monkeypatch.setattr(index, "rows", rewound)
    assert rows_of(index) == []


def test_actions_are_read_little_by_little(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(number) for number in range(5)], [])
    index = Index(run)
    index.refresh()
    assert index.read == 0.0
    assert rows_of(index, "q=tickle") == []
    assert {row.errors for row in rows_of(index)} == {None}
    assert index.read_on(3)
    assert 0 < index.read < 1
    while index.read_on(3):
        pass
    assert index.read == 1.0
    assert len(rows_of(index, "q=TICKLE+TOE-3")) == 2
    assert len(rows_of(index, "error=true")) == 5
    store.add_groups("a", 2, [group(5)], [])
    while index.read_on(3):
        pass
    assert len(rows_of(index, "q=tickle")) == 12


def test_a_run_that_was_rewound_is_read_anew(run: RunFolder, store: RunStore) -> None:
    for step in (1, 2, 3):
        store.add_groups("a", step, [group(step)], [fired(step)])
    index = Index(run)
    index.refresh()
    store.rewind("a", 1)
    assert index.refresh()
    assert [row.step for row in rows_of(index)] == [1, 1]
    for step in (2, 3, 4):  # others than before, with the numbers of rows that were there
        store.add_groups("a", step, [group(step + 10, success=False)], [])
    index.refresh()
    assert len(rows_of(index)) == 8
    assert {row.group for row in rows_of(index, "step_from=2")} == {
        "group-12",
        "group-13",
        "group-14",
    }
    assert len(rows_of(index, "signal=any")) == 1


def test_another_run_in_the_same_folder_is_another(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(1)], [])
    index = Index(run)
    index.refresh()
    store.close()
    for file in run.path.iterdir():
        file.unlink()
    run.manifest.write_text('{"seed": 1}')
    index.refresh()
    assert rows_of(index) == []
    with closing(RunStore(run.database, record="all")) as new:
        new.add_groups("a", 1, [group(2)], [])
        index.refresh()
    assert [row.group for row in rows_of(index)] == ["group-2", "group-2"]


def test_a_damaged_index_is_made_anew(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(1)], [])
    first = Index(run)
    first.refresh()
    for broken in (b"not a database at all" * 500, b""):
        schema.remove(first.file)
        first.file.write_bytes(broken)
        index = Index(run)
        index.refresh()
        assert len(rows_of(index)) == 2
    with closing(sqlite3.connect(first.file)) as db:
        db.execute("PRAGMA user_version=99")
    newer = Index(run)
    newer.refresh()
    assert len(rows_of(newer)) == 2


def test_a_damaged_run_is_told_and_its_index_is_not_blamed(run: RunFolder) -> None:
    run.database.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"run\.db"):
        Index(run).refresh()


def test_indexing_never_makes_a_writer_wait(run: RunFolder, store: RunStore) -> None:
    """It reads in mid-transaction, and a writer writes while it reads."""
    store.add_groups("a", 1, [group(1)], [])
    index, stop, failed = Index(run), threading.Event(), list[BaseException]()

    def look() -> None:
        try:
            while not stop.is_set():
                index.read_on(1)
        except BaseException as error:
            failed.append(error)

    looking = [threading.Thread(target=look) for _ in range(3)]
    for thread in looking:
        thread.start()
    with closing(sqlite3.connect(run.database, timeout=0, isolation_level=None)) as writer:
        for number in range(60):  # with no patience at all: any lock would raise
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("INSERT INTO texts (hash, body) VALUES (?, ?)", (str(number), b""))
            writer.execute("COMMIT")
    stop.set()
    for thread in looking:
        thread.join()
    assert not failed
    before = {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()}
    Index(run).refresh()
    assert {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()} == before


def test_indexes_of_runs_that_are_gone_are_removed(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(1)], [])
    index = Index(run)
    index.refresh()
    schema.remove_stale()
    assert index.file.is_file()
    store.close()
    shutil.rmtree(run.path)
    schema.remove_stale()
    assert not index.file.exists()


@pytest.fixture(scope="module")
def known(sample_folder: Path, coevo_home: Path) -> Iterator[tuple[Index, list[TrajectoryRow]]]:
    """The index of the small run, and its rows as an export has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_HOME", str(coevo_home))
        patch.chdir(sample_folder)
        shown = Shelf(Library([RUN])).run(RUN)
        while shown.index.read_on():
            pass
        yield shown.index, all_trajectories(shown)


VALUES: dict[str, st.SearchStrategy[str]] = {
    "arm": st.sampled_from(["static", "coevolve", "nobody"]),
    "step": st.integers(0, 6).map(str),
    "group": st.integers(0, 31).map("group-{}".format),
    "success": st.sampled_from(["true", "false"]),
    "signal": st.sampled_from(["any", "none", "boundary", "forgetting", "rare"]),
    "end": st.sampled_from(["solved", "failed", "max_steps"]),
    "version": st.integers(0, 6).map(str),
    "error": st.sampled_from(["true", "false"]),
    "q": st.sampled_from(["buy now", "MICE", "group-1", "a", "%", "click[", "b u y", "_", "'"]),
    **dict.fromkeys(("step_from", "step_to"), st.integers(0, 6).map(str)),
    **dict.fromkeys(("score_from", "score_to"), st.sampled_from(["0", "0.5", "0.75", "1"])),
    **dict.fromkeys(("steps_from", "steps_to"), st.integers(0, 9).map(str)),
    "sort": st.sampled_from(["step", "-step", "score", "-score", "steps", "-steps"]),
    "page": st.integers(1, 9).map(str),
    "per_page": st.sampled_from(["1", "7", "500"]),
}
ONCE = ("sort", "page", "per_page")
PAIRS = st.sampled_from([*VALUES]).flatmap(lambda n: st.tuples(st.just(n), VALUES[n]))


@settings(max_examples=80)
@given(pairs=st.lists(PAIRS, max_size=6))
def test_the_index_filters_as_its_rows_do(
    known: tuple[Index, list[TrajectoryRow]], pairs: list[tuple[str, str]]
) -> None:
    index, rows = known
    once = {name: (name, value) for name, value in pairs if name in ONCE}
    query = Query([*(pair for pair in pairs if pair[0] not in ONCE), *once.values()])
    found = find_trajectories(index, query)
    expected = select(rows, TRAJECTORIES, query)
    assert found.model_dump(include={*expected.paging}) == expected.paging
    assert [row.id for row in found.rows] == [row.id for row in expected.rows]


def refusals(shelf: Shelf, *paths: str) -> list[str]:
    """What is said of the paths that cannot be read."""
    found = []
    for path in paths:
        try:
            answer(shelf, path)
        except Damaged as damaged:
            found.append(str(damaged))
    return found


def test_a_run_that_is_damaged_does_not_hide_the_others(
    sample_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sample_folder / "runs", tmp_path / "runs")
    shutil.copytree(sample_folder / "evals", tmp_path / "evals")
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "runs" / RUN

    def copy(name: str) -> RunFolder:
        return RunFolder(Path(shutil.copytree(whole, whole.with_name(name))))

    copy("no-manifest").manifest.write_text("{")
    copy("later").manifest.write_text('{"schema": 99}')
    copy("no-summary").summary.write_text("[]")
    torn = copy("torn").database
    torn.write_bytes(torn.read_bytes()[:9000] + b"\0" * 5000)
    copy("empty").database.write_bytes(b"")
    copy("begun").database.unlink()
    (tmp_path / "evals" / EVAL / "results.jsonl").open("a").write('{"id": 1}\n')
    shelf = Shelf(Library())
    listed = json.loads(answer(shelf, "runs"))
    problems = {row["id"]: row["problem"] for row in listed["runs"]}
    assert set(problems) == {*("no-manifest", "later", "no-summary", "torn", "empty", "begun", RUN)}
    told = {id for id, problem in problems.items() if problem}
    assert (
        {"no-manifest", "later", "no-summary"}
        <= told
        <= {*("no-manifest", "later", "no-summary", "torn", "empty")}
    )
    assert "an invalid line" in listed["evals"][0]["problem"]
    for id in ("no-manifest", "later", "no-summary", "torn", "empty"):
        assert refusals(shelf, f"runs/{id}", f"runs/{id}/trajectories", f"runs/{id}/tasks")
    assert json.loads(answer(shelf, "runs/begun"))["stores"]["choices"] is False
    assert json.loads(answer(shelf, "runs/begun/trajectories"))["total"] == 0
    assert json.loads(answer(shelf, f"runs/{RUN}"))["id"] == RUN
    rows = json.loads(answer(shelf, f"runs/{RUN}/trajectories"))["rows"]
    shown = json.loads(answer(shelf, f"runs/{RUN}/trajectories/{rows[0]['id']}"))
    assert shown["stored"]["choices"]
    task = json.loads(answer(shelf, f"runs/{RUN}/tasks"))["rows"][-1]["id"]
    assert json.loads(answer(shelf, f"runs/{RUN}/tasks/{task}"))["story"]
    assert json.loads(answer(shelf, "search", "q=mice"))["totals"]["task"]
