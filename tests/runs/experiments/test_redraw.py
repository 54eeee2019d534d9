"""A run's evaluations read as verl-agent's: the measure, its columns, and the rows that show it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coevo_gym.runs.config import load_config
from coevo_gym.runs.evals.best_of_n import MIN_SAMPLES
from coevo_gym.runs.experiments.cells import Chosen, resolve_cell
from coevo_gym.runs.experiments.definition import Experiment, load_experiment
from coevo_gym.runs.experiments.making import build_table
from coevo_gym.runs.experiments.measures import MEASURES, _FinishedRun
from coevo_gym.runs.experiments.numbers import COLUMNS, numbers_of
from coevo_gym.runs.experiments.records import CellRecord
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, write_json
from coevo_gym.store.reader import Evaluated, EvaluatedTask
from tests.runs.experiments.conftest import make_record

MANIFEST = {"config": {}, "versions": {}}
READINGS = {
    "128": {"last": 0.61, "last_sd": 0.04, "best": 0.9, "rise": 0.3, "rise_unchanging": 0.1},
    "256": {"last": 0.62, "last_sd": 0.03, "best": 0.85, "rise": 0.25, "rise_unchanging": 0.2},
}
for reading in READINGS.values():
    reading["panel_best"] = 0.8


def table(**changes: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "toy",
            "title": "Redrawn",
            "benchmarks": ("webshop",),
            "baselines": ("panel",),
            "measures": ("redraw",),
            "columns": ("panel_best", "rise_256"),
            "rows": (
                {"name": "panel", "method": "static"},
                {"name": "last", "shows": "last_redrawn"},
                {"name": "best", "shows": "best_redrawn"},
            ),
            **changes,
        }
    )


def test_each_evaluation_of_a_run_is_read_from_its_own_outcomes(tmp_path: Path) -> None:
    config = load_config("quickstart", environ={}).config
    folder = RunFolder(tmp_path / "one")
    folder.path.mkdir()
    write_json(
        folder.manifest, {"schema": 1, "config": config.to_json(), "versions": {}, "seed": 0}
    )
    with closing(RunStore(folder.database)) as store:
        store.add_evaluated_tasks(
            EvaluatedTask(f"id{i}", f"webshop/{i}", "val", "", "s", "Buy.", ()) for i in range(9)
        )
        for policy, step, success in ((WARMUP, 0, True), ("static", 5, False), ("static", 9, True)):
            episodes = [
                Evaluated(f"id{i}", success and (step == 0 or i < 3), 0.0, "failed", 3, sample)
                for i in range(9)
                for sample in range(4)
            ]
            store.add_evaluation(policy, step, episodes)
    readings = MEASURES["redraw"](_FinishedRun(folder, config, "static", {}))
    assert [*readings] == ["128", "256"]
    one = readings["128"]
    assert (one["evaluations"], one["panel_best"], one["best"]) == (3, 1.0, 1.0)
    assert one["panel_last"] == pytest.approx(1 / 3)
    assert one["rise"] == pytest.approx(2 / 3)
    assert 0 < one["rise_unchanging"] < 0.2  # three tasks of nine always succeed


def test_readings_are_columns_and_rows() -> None:
    record = make_record("panel", redraw=READINGS)
    numbers = numbers_of(record, "panel")
    assert (numbers["panel_best"], numbers["last_redrawn"], numbers["best_redrawn"]) == (
        *(0.8, 0.61),
        0.9,
    )
    assert (numbers["rise"], numbers["rise_256"], numbers["last_redrawn_sd_256"]) == (
        *(0.3, 0.25),
        0.03,
    )
    assert (numbers["rise_unchanging"], numbers["rise_unchanging_256"]) == (0.1, 0.2)
    assert {name for name in numbers if "redrawn" in name or "rise" in name} <= COLUMNS.keys()
    assert numbers_of(record, "last_redrawn") == {"success": 0.61}
    assert numbers_of(record, "best_redrawn") == {"success": 0.9}
    assert numbers_of(make_record("panel"), "best_redrawn") == {}


def test_the_rows_are_compared_with_the_panel_by_seed(tmp_path: Path) -> None:
    experiment = table()
    chosen = Chosen(experiment, experiment.rows, (1, 2, 3), "webshop", "tiny", tmp_path)
    cells = chosen.cells()
    records: Mapping[str, CellRecord] = {
        cell.name: replace(make_record("panel", redraw=READINGS), manifest=MANIFEST)
        for cell in cells
    }
    panel, last, best = build_table(chosen, cells, records).lines
    assert panel.mean == 0.5  # the record's own success
    assert panel.columns["rise_256"] == 0.25
    assert last.mean == pytest.approx(0.61)
    assert best.comparisons[0].mean == pytest.approx(0.4)
    assert best.comparisons[0].wins == 3


def test_a_row_that_shows_a_redrawn_evaluation_needs_the_measure() -> None:
    with pytest.raises(ValidationError, match="row 'last' needs 'redraw' in measures"):
        table(measures=())


def test_the_question_is_fixed_in_the_table() -> None:
    experiment = load_experiment("draw_matters")
    assert len(experiment.seeds) == 5
    assert experiment.questions == (("best_redrawn", "panel"),)
    assert [row.shows for row in experiment.rows] == ["", "last_redrawn", "best_redrawn"]
    row = experiment.rows[0]
    assert experiment.benchmarks == ("webshop", "alfworld")
    for name, evaluations in zip(experiment.benchmarks, (31, 7), strict=True):
        where = {"benchmark": name, "budget": "small"}
        config = resolve_cell(experiment, row, 51, **where, environ={}).config
        assert (config.evaluation.split, config.evaluation.final) == ("val", ())
        assert config.evaluation.samples >= MIN_SAMPLES
        loop = config.loop
        # The first evaluation is before training.
        assert loop.max_steps == (evaluations - 1) * loop.evaluate_every_steps
