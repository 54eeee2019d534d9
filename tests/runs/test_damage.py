"""Damaged files of a run: a message names the file, and nothing is passed over in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import StoreError
from coevo_gym.runs.evals.job import run_job
from coevo_gym.runs.stop import StopRequest
from coevo_gym.runs.train import resume
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_lines, read_lines
from coevo_gym.store.reader import RunReader
from tests.runs.test_hold import Silent
from tests.runs.test_store import TASKS, fired, group, note


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
def test_a_whole_checkpoint_that_does_not_fit_is_named(
    run: RunFolder, phase: str, forge: Callable[[dict[str, Any]], None]
) -> None:
    checkpoints = Checkpoints(run.checkpoints / phase)
    saved = checkpoints.latest()
    assert saved is not None
    forge(saved.state)
    path = checkpoints.save(saved.step, saved.state)
    for use in (lambda: warnings(run), lambda: run_job(run, phase, "held_out")):
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


def test_records_that_are_missing_are_reported_at_resume(run: RunFolder) -> None:
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
    made = RunStore(tmp_path / "run.db")
    one = group(TASKS[0], 0)
    made.add_groups("a", 1, [one], [fired(one)])
    made.add_notes("a", 1, [note(one)])
    return made


def test_an_error_that_quotes_damaged_text_is_explained(store: RunStore) -> None:
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
def test_a_column_that_cannot_be_read_is_explained(store: RunStore, damage: str) -> None:
    store._db.execute(damage)
    with pytest.raises(StoreError, match=r"run\.db.*Restore a copy"):
        store.signals("a"), store.notes("a")
