"""Lists of a run's data: current while it is written, rewound or replaced."""

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

from coevo_gym.core.evolution import Signal
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.envs.diagnosis import stored_failure
from coevo_gym.store.database import MAX_WORDS, RunStore
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection, ShownRun
from coevo_gym.view.filters import TRAJECTORIES, select_page
from coevo_gym.view.library import Library
from coevo_gym.view.model.steps import group_rows
from coevo_gym.view.model.trajectory_list import (
    TrajectoryRow,
    all_trajectories,
    trajectory_page,
)
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import Damaged
from tests.toy import BENCHMARK
from tests.view.sample import EVAL, RUN

TASKS = BENCHMARK.tasks("train")  # type: ignore[arg-type]


def group(number: int, *, k: int = 2, success: bool = True, action: str = "") -> Group:
    task = TASKS[number % len(TASKS)]
    episodes = tuple(
        Trajectory(
            task_id=task.id,
            steps=(
                Step(
                    "a room",
                    "a room",
                    action or f"tickle toe-{number}",
                    error_kind="no_button" * place,
                ),
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


def open_run(folder: RunFolder) -> ShownRun:
    return ShownRun("run", folder)


def rows_of(folder: RunFolder, query: str = "") -> list[TrajectoryRow]:
    return list(trajectory_page(open_run(folder), Query.parse(f"per_page=500&{query}")).rows)


def test_rows_are_listed_while_the_run_is_still_writing(run: RunFolder, store: RunStore) -> None:
    assert rows_of(run) == []
    for step in range(1, 4):
        number = 2 * step
        store.add_groups("a", step, [group(number), group(number + 1)], [fired(number)])
        assert len(rows_of(run)) == 4 * step
        assert [row.group for row in rows_of(run, "signal=boundary")] == [
            f"group-{2 * one}" for one in range(1, step + 1)
        ]
    assert {row.advantage for row in rows_of(run)} == {None}
    store.add_advantages("a", 3, [group(6)], [[1.5, -0.5]])
    assert [row.advantage for row in rows_of(run, "group=group-6")] == [1.5, -0.5]
    assert [row.advantage for row in rows_of(run, "sort=-advantage")][:3] == [1.5, -0.5, None]


def test_rows_are_cached_until_the_run_writes(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(1)], [fired(1)])
    view = open_run(run)

    def rows() -> list[tuple[str, bool, tuple[str, ...]]]:
        groups = view.get_or_make("groups", lambda: group_rows(view, "a"))
        assert view.get_or_make("groups", list) is groups
        return [(row.id, row.stored, row.signals) for row in groups]

    assert rows() == [("group-1", True, ("boundary",))]
    store.add_groups("a", 2, [group(2)], [fired(2, "rare"), fired(2, place=1)])
    assert rows()[1:] == [("group-2", True, ("boundary", "rare"))]
    store.delete_after("a", 0)
    assert rows() == []


def test_groups_without_a_signal_are_listed_without_episodes(run: RunFolder) -> None:
    with closing(RunStore(run.database, record="signals")) as store:
        store.add_groups("a", 1, [group(1), group(2)], [fired(2)])
    assert [row.stored for row in group_rows(open_run(run), "a")] == [False, True]
    assert {row.group for row in rows_of(run)} == {"group-2"}


def test_a_page_omits_rows_that_a_rewind_deletes_meanwhile(
    run: RunFolder, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_groups("a", 1, [group(1)], [])
    view = open_run(run)
    read = view.query_rows
    rewound = lambda *query: (read(*query), store.delete_after("a", 0))[0]  # noqa: E731
    monkeypatch.setattr(view, "query_rows", rewound)
    assert trajectory_page(view, Query()).rows == ()


def test_actions_are_searchable(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(number) for number in range(5)], [])
    assert len(rows_of(run, "q=TICKLE+TOE-3")) == 2
    assert len(rows_of(run, "q=group-3.1")) == 1
    assert len(rows_of(run, "error=true")) == 5
    assert [row.errors for row in rows_of(run, "group=group-4")] == [0, 1]


def test_long_actions_are_searchable_up_to_a_limit(run: RunFolder, store: RunStore) -> None:
    store.add_groups("a", 1, [group(1, action="Ä" * (MAX_WORDS - 2) + "In and out")], [])
    assert len(rows_of(run, "q=äin")) == 2
    assert rows_of(run, "q=out") == []


def test_a_rewound_run_is_read_again(run: RunFolder, store: RunStore) -> None:
    for step in (1, 2, 3):
        store.add_groups("a", step, [group(step)], [fired(step)])
    store.delete_after("a", 1)
    assert [row.step for row in rows_of(run)] == [1, 1]
    for step in (2, 3, 4):  # others than before, with the numbers of rows that were there
        store.add_groups("a", step, [group(step + 10, success=False)], [])
    assert len(rows_of(run)) == 8
    assert {row.group for row in rows_of(run, "step_from=2")} == {
        "group-12",
        "group-13",
        "group-14",
    }
    assert len(rows_of(run, "signal=any")) == 1
    assert rows_of(run, "q=toe-3") == []


def test_a_new_run_in_the_same_folder_replaces_the_cached_rows(
    run: RunFolder, store: RunStore
) -> None:
    store.add_groups("a", 1, [group(1)], [])
    view = open_run(run)
    groups = lambda: [row.id for row in view.get_or_make("x", lambda: group_rows(view, "a"))]  # noqa: E731
    assert groups() == ["group-1"]
    store.close()
    for file in run.path.iterdir():
        file.unlink()
    assert groups() == []
    with closing(RunStore(run.database, record="all")) as new:
        new.add_groups("a", 1, [group(2)], [])
        assert groups() == ["group-2"]


def test_a_damaged_database_is_an_error(run: RunFolder) -> None:
    run.database.write_bytes(b"no database" * 1000)
    with pytest.raises(Damaged, match=r"run\.db"):
        rows_of(run)


def test_reading_never_blocks_the_writer(run: RunFolder, store: RunStore) -> None:
    """The writer writes while readers read in the middle of a transaction."""
    store.add_groups("a", 1, [group(1)], [])
    stop, failed = threading.Event(), list[BaseException]()

    def look() -> None:
        view = open_run(run)
        try:
            while not stop.is_set():
                with view.reuse_reader():
                    trajectory_page(view, Query.parse("q=tickle"))
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
    rows_of(run)
    assert {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()} == before


@pytest.mark.parametrize(
    "query", ["success=false", "failure=x", "step_from=2&sort=-score", "q=toe"]
)
def test_lists_are_filtered_without_reading_bodies(
    run: RunFolder, store: RunStore, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Every column that a filter or a sort needs is in the index ``listed``."""
    view, plans = open_run(run), list[str]()
    read = view.query_rows

    def explained(query: str, *values: object) -> list[tuple[object, ...]]:
        plans.extend(row[-1] for row in read(f"EXPLAIN QUERY PLAN {query}", *values))
        return read(query, *values)

    monkeypatch.setattr(view, "query_rows", explained)
    trajectory_page(view, Query.parse(query))
    assert "SCAN t USING COVERING INDEX listed" in plans
    assert "SCAN trajectories USING COVERING INDEX listed" in plans  # the kinds of failures


def test_the_kind_of_failure_is_stored_with_the_episode_and_listed(
    run: RunFolder, store: RunStore
) -> None:
    store.add_groups("a", 1, [group(1, success=False)], [fired(1)])
    store.diagnose = stored_failure
    store.add_groups("a", 2, [group(2, success=False), group(3)], [fired(2), fired(3)])
    view = open_run(run)
    kinds = ["missing_tool_call", "invalid_tool_call"]  # the second one has a faulty step
    assert [row.failure for row in all_trajectories(view)] == ["", "", *kinds, "", ""]
    page = trajectory_page(view, Query.parse("failure=invalid_tool_call"))
    assert [row.id for row in page.rows] == ["a.group-2.1"]
    assert page.failures == tuple(sorted(kinds))


@pytest.fixture(scope="module")
def known(sample_folder: Path) -> Iterator[tuple[ShownRun, list[TrajectoryRow]]]:
    """The small run, and its rows as an export has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(sample_folder)
        view = RunCollection(Library([RUN])).get_run(RUN)
        yield view, all_trajectories(view)


VALUES: dict[str, st.SearchStrategy[str]] = {
    "arm": st.sampled_from(["static", "coevolve", "nobody"]),
    "step": st.integers(0, 6).map(str),
    "group": st.integers(0, 31).map("group-{}".format),
    "success": st.sampled_from(["true", "false"]),
    "signal": st.sampled_from(["any", "none", "boundary", "forgetting", "rare"]),
    "end": st.sampled_from(["solved", "failed", "max_steps"]),
    "failure": st.sampled_from(["argument_mismatch", "missing_tool_call", "other"]),
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
def test_filtering_in_sql_equals_filtering_in_python(
    known: tuple[ShownRun, list[TrajectoryRow]], pairs: list[tuple[str, str]]
) -> None:
    view, rows = known
    once = {name: (name, value) for name, value in pairs if name in ONCE}
    query = Query([*(pair for pair in pairs if pair[0] not in ONCE), *once.values()])
    page = trajectory_page(view, query)
    expected = select_page(rows, TRAJECTORIES, query)
    assert page.model_dump(include={*expected.paging}) == expected.paging
    assert [row.id for row in page.rows] == [row.id for row in expected.rows]


def refusals(collection: RunCollection, *paths: str) -> list[str]:
    """What is said of the paths that cannot be read."""
    messages = []
    for path in paths:
        try:
            json_response(collection, path)
        except Damaged as damaged:
            messages.append(str(damaged))
    return messages


def test_a_damaged_run_does_not_hide_the_others(
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
    collection = RunCollection(Library())
    index = json.loads(json_response(collection, "runs"))
    problems = {row["id"]: row["problem"] for row in index["runs"]}
    assert set(problems) == {*("no-manifest", "later", "no-summary", "torn", "empty", "begun", RUN)}
    with_problem = {id for id, problem in problems.items() if problem}
    assert (
        {"no-manifest", "later", "no-summary"}
        <= with_problem
        <= {*("no-manifest", "later", "no-summary", "torn", "empty")}
    )
    assert "an invalid line" in index["evals"][0]["problem"]
    for id in ("no-manifest", "later", "no-summary", "torn", "empty"):
        assert refusals(collection, f"runs/{id}", f"runs/{id}/trajectories", f"runs/{id}/tasks")
    assert json.loads(json_response(collection, "runs/begun"))["stores"]["choices"] is False
    assert json.loads(json_response(collection, "runs/begun/trajectories"))["total"] == 0
    assert json.loads(json_response(collection, f"runs/{RUN}"))["id"] == RUN
    rows = json.loads(json_response(collection, f"runs/{RUN}/trajectories"))["rows"]
    detail = json.loads(json_response(collection, f"runs/{RUN}/trajectories/{rows[0]['id']}"))
    assert detail["stored"]["choices"]
    task = json.loads(json_response(collection, f"runs/{RUN}/tasks"))["rows"][-1]["id"]
    assert json.loads(json_response(collection, f"runs/{RUN}/tasks/{task}"))["story"]
    assert json.loads(json_response(collection, "search", "q=mice"))["totals"]["task"]
