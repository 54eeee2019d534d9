"""Damaged files of a run: a message names the file, and nothing is passed over in silence."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.runs.evals.job import make_run_job
from coevo_gym.runs.stop import StopRequest
from coevo_gym.runs.train import resume
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_lines, read_lines
from coevo_gym.store.reader import Evaluated, EvaluatedTask, RunReader
from coevo_gym.store.rows import Decision
from tests.runs.test_hold import Silent
from tests.runs.test_store import RESULT, ROUND, TASKS, fired, group, note


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    """A copy of a finished run, which a resume goes through to its end."""
    return RunFolder(Path(shutil.copytree(finished, tmp_path / "run")))


def warnings(run: RunFolder) -> list[str]:
    heard = Heard()
    resume(run, heard, StopRequest())
    return [line for line in heard.lines if line.startswith("warning: ")]


def without_policy(state: dict[str, Any]) -> None:
    del state["policy"]


def of_another_shape(state: dict[str, Any]) -> None:
    net = state["policy"]["net"]
    net.update({name: weights[:1] for name, weights in net.items()})


def not_finite(state: dict[str, Any]) -> None:
    for weights in state["policy"]["net"].values():
        weights[:] = float("nan")


@pytest.mark.parametrize("forge", [without_policy, of_another_shape, not_finite])
@pytest.mark.parametrize("phase", ["warm-up", "static"])
def test_an_undamaged_checkpoint_that_does_not_fit_is_refused_with_its_path(
    run: RunFolder, phase: str, forge: Callable[[dict[str, Any]], None]
) -> None:
    checkpoints = Checkpoints(run.checkpoints / phase)
    saved = checkpoints.load_latest()
    assert saved is not None
    forge(saved.state)
    path = checkpoints.save(saved.step, saved.state)
    for use in (lambda: warnings(run), lambda: make_run_job(run, phase, "held_out")):
        with pytest.raises(StoreError, match=rf"{path} .*delete this one.*--overwrite"):
            use()


def test_a_database_with_a_damaged_page_is_not_resumed(run: RunFolder) -> None:
    data = bytearray(run.database.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    data[-page:] = bytes(page)
    run.database.write_bytes(data)
    RunReader(run.database)  # opens as if nothing were wrong
    with pytest.raises(StoreError, match=r"Cannot use .*run\.db.*Restore a copy"):
        resume(run, Silent(), StopRequest())
    assert run.database.read_bytes() == data


def test_missing_metric_records_are_reported_at_resume(run: RunFolder) -> None:
    lines = read_lines(run.metrics)
    assert warnings(run) == []

    def missing(line: dict[str, Any]) -> bool:
        place = line["event"], line.get("arm"), line.get("step")
        return place in {("step", "static", n) for n in (1, 2, 4)}

    run.metrics.unlink()
    append_lines(run.metrics, [line for line in lines if not missing(line)])
    run.metrics.write_bytes(run.metrics.read_bytes()[:-100])  # the last line is torn
    of_static, of_coevolve = warnings(run)
    assert "no record of static at step 1-2, 4: the file was damaged or deleted" in of_static
    assert "no record of coevolve at step 6:" in of_coevolve
    run.metrics.unlink()
    assert ["at step 1-6:" in line for line in warnings(run)] == [True, True]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    run_store = RunStore(tmp_path / "run.db")
    one = group(TASKS[0], 0)
    run_store.add_groups("a", 1, [one], [fired(one)])
    run_store.add_notes("a", 1, [note(one)])
    return run_store


def test_a_database_error_that_quotes_damaged_text_is_explained(store: RunStore) -> None:
    store.close()
    data = store.path.read_bytes()
    store.path.write_bytes(data.replace(b"CREATE TABLE tasks", b"CREATE \xffABLE tasks"))
    for use in (lambda path: RunReader(path).tasks(), RunStore):
        with pytest.raises(StoreError, match=r"Cannot use .*run\.db.*Restore a copy"):
            use(store.path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE signals SET evidence = '{'",
        "UPDATE signals SET kind = 'no kind'",
        "UPDATE signals SET kind = CAST(x'ff' AS TEXT)",
        "UPDATE notes SET evidence = '{'",
        "UPDATE notes SET position = 'x'",
    ],
)
def test_an_unreadable_value_in_the_database_is_explained(store: RunStore, damage: str) -> None:
    store._db.execute(damage)
    with pytest.raises(StoreError, match=r"run\.db.*Restore a copy"):
        store.signals("a"), store.notes("a")


def filled(path: Path) -> None:
    """Write a database with rows in most tables."""
    with closing(RunStore(path, record="all")) as run_store:
        groups = [group(task, number) for number, task in enumerate(TASKS[:3])]
        run_store.add_groups("a", 1, groups, [fired(one) for one in groups])
        run_store.add_advantages("a", 1, groups, [[0.5, -0.5]] * 3)
        run_store.add_notes("a", 1, [note(one) for one in groups])
        run_store.add_round("a", 1, 99, 12, ROUND, RESULT)
        run_store.add_decisions([Decision(TASKS[0].id, "released", "fine", "now")])
        run_store.add_evaluated_tasks(
            [EvaluatedTask(t.id, t.name, "val", "", t.scenario, "do it", ("a:b",)) for t in TASKS]
        )
        ended = [Evaluated(t.id, i % 2 > 0, i / 40, "max_steps", i) for i, t in enumerate(TASKS)]
        run_store.add_evaluation("a", 1, ended)


def contents(path: Path) -> list[Any]:
    """Read all that a report uses, after a check of the whole file."""
    reader = RunReader(path)
    reader.check_integrity()
    return [
        *(reader.evaluation("a", 1), reader.outcomes("a", 1), reader.evaluated_tasks()),
        *(reader.task_counts(), reader.signals("a"), reader.notes("a"), reader.note_counts()),
        *(reader.rounds(), reader.tasks(), reader.trajectories("a"), reader.decisions()),
        reader.verdict_places(""),
    ]


TABLES = (
    "advantages", "decisions", "evaluated_tasks", "evaluations", "groups", "lineage", "notes",
    "rounds", "signals", "tasks", "trajectories", "verdicts",
)  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_a_changed_database_row_fails_its_checksum(table: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    filled(path)
    contents(path)
    with closing(sqlite3.connect(path)) as database:
        columns = database.execute(f"SELECT name, type FROM pragma_table_info('{table}')")
        changed = [name for name, of in columns if of != "BLOB" and name != "checksum"][-1]
        database.execute(f"UPDATE {table} SET {changed} = 17 WHERE rowid = 1")
        database.commit()
    with pytest.raises(StoreError, match=rf"row 1 of {table} does not match its checksum"):
        contents(path)


def test_a_changed_evaluation_result_fails_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    filled(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE evaluations SET success = 1 WHERE task_id = ?", (TASKS[0].id,))
        database.commit()
    with pytest.raises(StoreError, match=f"result of task {TASKS[0].id} does not match"):
        RunReader(path).evaluation("a", 1)


def check_flips(folder: Path, seeds: range) -> None:
    path = folder / "run.db"
    filled(path)
    data, expected = path.read_bytes(), contents(path)
    n_noticed = 0
    for seed in seeds:
        rng = random.Random(seed)
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            assert contents(path) == expected, seed
        except StoreError:
            n_noticed += 1
    assert n_noticed


def test_flipped_bits_are_detected_or_change_nothing(tmp_path: Path) -> None:
    check_flips(tmp_path, range(60))


@pytest.mark.slow
def test_many_flipped_bits_are_detected_or_change_nothing(tmp_path: Path) -> None:
    check_flips(tmp_path, range(1000, 2500))


FILES = (
    "manifest.json", "run.db", "metrics.jsonl", "summary.json", "progress.json", ".lock",
    ".metrics.jsonl.part", "checkpoints/coevolve/last", "checkpoints/warm-up/last",
)  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("pipe", name) for name in FILES), ("device", "metrics.jsonl"), ("device", FILES[-1])],
)
def test_a_special_file_in_a_runs_folder_never_hangs_a_resume(
    run: RunFolder, name: str, kind: str
) -> None:
    """A pipe without a writer blocks, and a device has no end."""
    path = run.path / name
    if path.name == "last":
        path = max(path.parent.glob("step-*.pt"))
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with suppress(StoreError, ConfigError):
        resume(run, Heard(), StopRequest())


@pytest.mark.parametrize("what", ["folder", "database"])
def test_a_run_moved_away_during_training_stops_and_leaves_no_second_run(
    run: RunFolder, what: str
) -> None:
    newest = max((run.checkpoints / "coevolve").glob("step-*.pt"))
    newest.unlink()
    moved, away = (run.path, run.path.with_name("away"))
    if what == "database":
        moved, away = run.database, away

    class Moves(StopRequest):
        def __call__(self) -> bool:
            if moved.exists():
                moved.rename(away)
            return False

    with pytest.raises(StoreError, match=r"run\.db was deleted, moved or replaced while in use"):
        resume(run, Heard(), Moves())
    assert not moved.exists()
    away.rename(moved)
    resume(run, Heard(), StopRequest())
