"""While a run is under way, Python seldom looks through all objects; afterwards as before."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from coevo_gym.episodes.live import SELDOM, make_full_gc_rare
from coevo_gym.runs.config import load_config
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_run_job
from coevo_gym.runs.train import train
from coevo_gym.store.folder import RunFolder
from tests.runs.conftest import TOY

USUAL = (600, 9, 8)


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


class Watch(RunProgress):
    """Progress that nobody sees; it notes how often full collections come."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.seen = set[int]()

    def update(self, done: int, **facts: str) -> None:
        self.seen.add(gc.get_threshold()[2])
        super().update(done, **facts)


def test_full_collections_are_rare_and_thresholds_are_restored_on_error() -> None:
    def fail() -> None:
        with make_full_gc_rare():
            assert gc.get_threshold() == (*USUAL[:2], SELDOM)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.get_threshold() == USUAL


def test_a_higher_threshold_of_the_user_is_left_unchanged() -> None:
    gc.set_threshold(0, 5, SELDOM + 1)
    with make_full_gc_rare():
        assert gc.get_threshold() == (0, 5, SELDOM + 1)


def test_full_collections_are_rare_during_runs_and_evaluations(tmp_path: Path) -> None:
    folder, watch = RunFolder(tmp_path / "run"), Watch()
    train(folder, load_config(TOY, sets=["arms=static"], environ={}), watch, lambda: False)
    assert watch.seen == {SELDOM}
    watch = Watch()
    evaluate_job(make_run_job(folder, "static", "val"), watch)
    assert watch.seen == {SELDOM}
    assert gc.get_threshold() == USUAL
