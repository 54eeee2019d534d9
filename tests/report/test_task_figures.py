"""The map of the tasks, how they spread out, and how long episodes are."""

from __future__ import annotations

import math
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coevo_gym.core.notes import Note
from coevo_gym.core.task import Split
from coevo_gym.curricula.metrics import energy_distance, self_similarity
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.report.collect import load_report_data
from coevo_gym.report.data import ArmLengths, ArmMap, ArmSpread, Place, ReportData, Spread
from coevo_gym.report.noted import INTERFACE
from coevo_gym.report.render import render_report
from coevo_gym.report.task_sets import ArmTasks, maps_of, plane, spread_of
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, read_json
from coevo_gym.store.reader import RunReader
from tests.report import made_up
from tests.report.test_render import chart
from tests.run.conftest import finished  # noqa: F401 (a fixture)
from tests.toy import BENCHMARK

TASKS = BENCHMARK.tasks(Split.TRAIN)
HELD_OUT = BENCHMARK.tasks(Split.VAL)
ARM = ArmTasks("A", tuple(TASKS[:10]), (tuple(TASKS[10:13]), (), tuple(TASKS[13:20])))


def test_the_plane_holds_what_differs_most_and_does_not_turn_over() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 50)) * np.array([9.0, 4.0, *[0.1] * 48])
    for few in (rows, rows[:, :5]):  # fewer rows than columns, and more
        at, shares = plane(few)
        assert abs(np.corrcoef(at[:, 0], few[:, 0])[0, 1]) > 0.99
        assert abs(np.corrcoef(at[:, 1], few[:, 1])[0, 1]) > 0.99
        assert shares[0] > shares[1] > 0
        assert sum(shares) > 0.9
        shuffled = rng.permutation(len(few))
        assert np.allclose(plane(few[shuffled])[0], at[shuffled])
    pairs = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    flat = np.linalg.norm((p := plane(rows)[0])[:, None] - p[None], axis=2)
    assert (flat <= pairs + 1e-9).all()  # a projection brings nothing further apart


def test_a_plane_of_equal_rows_is_a_point() -> None:
    at, shares = plane(np.ones((4, 6)))
    assert np.abs(at).max() < 1e-9
    assert all(math.isnan(share) for share in shares)


def test_spread_is_that_of_the_formulas_after_each_round() -> None:
    found = spread_of(ARM).rounds
    embed = HashingEmbedder()
    first = embed([task.instruction for task in ARM.first])
    evolved = embed([task.instruction for found in ARM.rounds for task in found])
    assert [spread.round for spread in found] == [0, 1, 2, 3]
    assert found[0].likeness == pytest.approx(self_similarity(first))
    assert math.isnan(found[0].distance)
    assert found[1][1:] == found[2][1:]  # a round that found nothing
    assert found[3].likeness == pytest.approx(self_similarity(np.concatenate([first, evolved])))
    assert found[3].distance == pytest.approx(energy_distance(first, evolved).relative, abs=1e-6)


def test_a_map_has_all_tasks_with_their_rounds_and_held_out_ones_without_words() -> None:
    (found,) = maps_of([ARM], HELD_OUT[:7])
    assert [place.round for place in found.tasks] == [0] * 10 + [1] * 3 + [3] * 7
    assert [place.about for place in found.tasks] == [t.instruction for t in TASKS[:20]]
    assert len(found.held_out) == 7
    assert {place.about for place in found.held_out} == {""}
    assert maps_of([ARM], HELD_OUT[:7]) == (found,)
    again, other = maps_of([ARM, ARM._replace(arm="B")], HELD_OUT[:7])
    assert [p[:2] for p in again.tasks] == [p[:2] for p in other.tasks]
    assert maps_of([], ()) == ()


def test_of_many_tasks_a_sample_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevo_gym.report.task_sets.MAX_PLACES", 6)
    (found,) = maps_of([ARM], HELD_OUT)
    assert len(found.tasks) == len(found.held_out) == 6
    assert (found.tasks[0].round, found.tasks[-1].round) == (0, 3)


def marks(drawn: str, css: str) -> list[tuple[float, float]]:
    found = re.findall(rf'<circle class="{css}" cx="(\S+)" cy="(\S+)"', drawn)
    return [(float(x), float(y)) for x, y in found]


def test_a_map_is_drawn_to_scale_with_its_legend() -> None:
    at = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (3.0, 2.0)]
    places = tuple(Place(x, y, 1, "words <b>") for x, y in at)
    data = ReportData("t", maps=(ArmMap("A", places, (Place(2, 2),), (0.3, 0.2)),))
    page = render_report(data)
    drawn = chart(page, "map")
    _, *points = marks(drawn, "mark r0")  # the first one is the legend's
    (x0, y0), (x1, y1), (x2, y2), _ = points
    assert x1 - x0 == pytest.approx(y0 - y2, abs=0.02)  # a unit is as long upwards
    assert (y1, x2) == (pytest.approx(y0), pytest.approx(x0))
    assert len(marks(drawn, "held-out")) == 2
    assert "round 1: words &lt;b&gt;" in drawn
    assert "words &lt;" not in chart(page, "map-small")
    assert "They show 50\u202f% of how the words differ." in page


def test_rounds_are_told_apart_by_colour_and_mark() -> None:
    drawn = chart(render_report(made_up.full()), "map")
    labels = re.findall(r'class="name" [^>]*>([^<]*)<', drawn)
    expected = ["held-out", "D_0", "rounds 1–2", "rounds 3–4", "round 5", "rounds 6–7"]
    assert labels == [*expected, "rounds 8–9"]
    kinds = set(re.findall(r'<(circle|path) class="(mark[^"]*)"', drawn))
    assert {css for _, css in kinds} >= {f"mark r{i}" for i in range(4)} | {"mark ring r4"}
    assert drawn.count('class="frame"') == 2


def test_places_that_are_none_are_left_out() -> None:
    nowhere = ArmMap("A", (Place(math.nan, 0.0, 1), Place(0.0, math.inf, 2)))
    assert "map-title" not in render_report(ReportData("t", maps=(nowhere,)))
    one = ArmMap("A", (*nowhere.tasks, Place(1.0, 1.0, 3)))
    assert "map-title" in render_report(ReportData("t", maps=(one,)))


def bars(drawn: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title></rect>", drawn)


def test_a_histogram_counts_solved_and_failed_episodes() -> None:
    data = ReportData("t", lengths=(ArmLengths("A", (2, 2, 4), (4, 1)), ArmLengths("B", (), (4,))))
    assert bars(chart(render_report(data), "lengths")) == [
        "A 1: failed 1", "A 2: solved 2", "A 4: solved 1", "A 4: failed 1", "B 4: failed 1",
    ]  # fmt: skip


def test_long_episodes_share_columns() -> None:
    data = ReportData("t", lengths=(ArmLengths("A", (1, 50), (3, 4)),))
    assert bars(chart(render_report(data), "lengths")) == [
        "A 1–3: solved 1", "A 1–3: failed 1", "A 4–6: failed 1", "A 49–50: solved 1",
    ]  # fmt: skip


def test_spread_is_drawn_over_rounds() -> None:
    rounds = (Spread(0, 0.5, math.nan), Spread(1, 0.25, 0.1), Spread(2, 0.5, 0.2))
    drawn = chart(render_report(ReportData("t", spreads=(ArmSpread("A", rounds),))), "spread")
    likeness, distance = re.findall(r'class="line s0" d="([^"]*)"', drawn)
    assert (likeness.count("L"), distance.count("L")) == (2, 1)


@pytest.mark.parametrize("part", ["maps", "lengths", "spreads"])
def test_a_report_without_a_part_is_whole(part: str) -> None:
    changes: dict[str, Any] = {part: ()}
    page = render_report(replace(made_up.full(), **changes))
    assert page.count("<section") == page.count("</section>") == 12


def test_a_run_is_read_into_them(finished: Path) -> None:  # noqa: F811
    data = load_report_data(RunFolder(finished))
    arms = read_json(finished / "summary.json")["arms"]
    assert [one.arm for one in data.spreads] == ["coevolve"] == [one.arm for one in data.maps]
    assert len(data.maps[0].tasks) == arms["coevolve"]["pool_size"]
    assert len(data.maps[0].held_out) == 10
    assert data.spreads[0].rounds[-1].round == max(place.round for place in data.maps[0].tasks)
    (evolved,) = data.evolution
    assert evolved.likeness_after == data.spreads[0].rounds[-1].likeness
    solved = {one.arm: len(one.solved) for one in data.lengths}
    assert list(solved) == ["random", "warm-up", "static", "coevolve"]
    assert {row.name: row.success for row in data.table} == {
        name: n / 10 for name, n in solved.items()
    }


def test_what_studies_noted_is_read_from_the_store(
    finished: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("manifest.json", "metrics.jsonl", "summary.json", "run.db"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    about = {"task_id": "t", "group_id": "g", "index": 0}
    store = RunStore(tmp_path / "run.db")
    says: Any = {"version": "v1-whole", "says": ["Look first."]}
    notes = (
        Note(kind="turn", label="empty", **about),
        Note(kind=INTERFACE, label="v1", evidence=says, **about),
    )
    store.add_notes("coevolve", 2, notes)
    store.close()
    data = load_report_data(RunFolder(tmp_path))
    (found,) = data.labels
    assert (found.arm, found.kind, found.labels) == ("coevolve", "turn", ("empty",))
    (part,) = [part for part in found.bins if part.n]
    assert part.first <= 2 <= part.last
    assert part.env_steps > 0
    (version,) = data.versions
    assert (version.arm, version.version, version.says) == ("coevolve", "v1", ("Look first.",))
    assert version.env_steps > 0


def test_a_run_of_before_has_a_report_without_lengths(
    finished: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("manifest.json", "metrics.jsonl", "summary.json", "run.db"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    with closing(sqlite3.connect(tmp_path / "run.db")) as database:
        database.executescript(
            "DROP TABLE evaluations; DROP TABLE evaluated_tasks; DROP TABLE notes;"
        )
    data = load_report_data(RunFolder(tmp_path))
    assert data.lengths == ()
    assert (data.labels, data.versions) == ((), ())
    assert "does not keep how each evaluation episode ended" in render_report(data)
    assert RunReader(tmp_path / "run.db").evaluated_tasks() == []
