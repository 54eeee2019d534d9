"""Tables of the simulated learner, through the command."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.experiments.cells import Chosen
from coevo_gym.runs.experiments.definition import load
from coevo_gym.runs.experiments.results import RowComparison, TableLine
from coevo_gym.runs.experiments.simulated import in_worlds, over_worlds, run_batches
from coevo_gym.runs.progress import ProgressSink
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.store.folder import read_lines
from tests.runs.experiments.conftest import Coevo

TABLE = """
title = "Two worlds"
kind = "simulated"
benchmarks = ["plain", "skew"]
seeds = "5-6"
baselines = ["static"]
columns = ["pool_size"]

[settings]
"curriculum.initial_size" = 10

[[rows]]
name = "static"

[[rows]]
name = "random_append"
worlds = ["skew"]
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # seeds in this process: they take no second
    path = tmp_path / "two.toml"
    path.write_text(TABLE)
    return path


def test_numbers_follow_from_the_seeds_and_seeds_are_kept(
    table: Path, coevo: Coevo, tmp_path: Path
) -> None:
    found = json.loads(coevo("experiment", str(table), "--json", only_out=True))
    lines = {line["key"]: line for line in found["lines"]}
    assert list(lines) == ["plain-static", "skew-static", "skew-random_append"]
    of = {
        key: [line["success"] for line in read_lines(tmp_path / "runs/two" / key / "seeds.jsonl")]
        for key in lines
    }
    for key, line in lines.items():
        assert line["mean"] == pytest.approx(statistics.mean(of[key]))
        assert line["sd"] == pytest.approx(statistics.stdev(of[key]))
    (comparison,) = lines["skew-random_append"]["comparisons"]
    differences = [a - b for a, b in zip(of["skew-random_append"], of["skew-static"], strict=True)]
    half = 12.706204736 * statistics.stdev(differences) / math.sqrt(2)
    assert comparison["baseline"] == "skew-static"
    assert comparison["low"] == pytest.approx(statistics.mean(differences) - half)
    assert lines["plain-static"]["columns"]["pool_size"] == 10
    assert any("random_append against static: the interval" in note for note in found["notes"])
    again = coevo("experiment", str(table))
    assert "0 new cells, 0 resumed, 6 already finished" in again
    more = coevo("experiment", str(table), "--seeds", "3", "--benchmark", "plain")
    assert "1 new cells, 0 resumed, 2 already finished" in more


class Quiet(ProgressSink):
    """Progress that nobody looks at."""

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None: ...
    def update(self, done: int, **facts: str) -> None: ...
    def say(self, text: str) -> None: ...


def test_seeds_that_are_done_stay(table: Path, tmp_path: Path) -> None:
    experiment = load(str(table))
    rows = in_worlds(experiment.chosen(("static",)), ["plain"])
    chosen = Chosen(experiment, rows, (5, 6), "plain", "tiny", tmp_path)
    stop = StopRequest()

    class Stops(Quiet):
        def update(self, done: int, **facts: str) -> None:
            stop.requested = True

    with pytest.raises(Stopped):
        run_batches(chosen, Stops(), stop)
    assert len(read_lines(tmp_path / "plain-static" / "seeds.jsonl")) == 1
    values, counts = run_batches(chosen, Quiet(), StopRequest())
    assert (counts.there, counts.new) == (1, 1)
    assert values["plain-static"].keys() == {5, 6}


def test_other_settings_are_never_taken_for_equal(table: Path, coevo: Coevo) -> None:
    one = ("experiment", str(table), "--rows", "static", "--benchmark", "plain", "--seeds", "1")
    coevo(*one)
    table.write_text(TABLE.replace('size" = 10', 'size" = 11'))
    assert "contains seeds that were run with different settings" in coevo(*one, code=2)


def test_worlds_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="Unknown world 'flat'"):
        in_worlds((), ["flat"])


def line_of(world: str, row: str, mean: float, *against: RowComparison) -> TableLine:
    return TableLine(f"{world}-{row}", row, world, {}, mean, None, against, {}, None)


def test_worlds_are_counted_without_the_controls() -> None:
    def better(world: str) -> RowComparison:
        return RowComparison(f"{world}-static", (1, 2), mean=0.06, low=0.01, high=0.1)

    lines = [
        line
        for world in ("plain", "skew", "skewed", "null")
        for line in (line_of(world, "static", 0.5), line_of(world, "ours", 0.56, better(world)))
    ]
    assert list(over_worlds(lines)) == [
        "ours against static: the interval lies above 0 in 2 of 2 worlds and below in 0; 5 points "
        "or more in 2.",
        "null: the means of all rows lie within 6.0 points.",
    ]
