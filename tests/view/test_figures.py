"""Figures: every program draws the same picture, and the numbers behind it are right."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import mean_and_sd, mean_interval
from coevo_gym.runs.config import load_config
from coevo_gym.runs.experiments.cells import choose_cells
from coevo_gym.runs.experiments.definition import load_experiment
from coevo_gym.runs.experiments.making import build_finished_table
from coevo_gym.runs.experiments.results import ResultTable
from coevo_gym.runs.experiments.writing import write_table
from coevo_gym.runs.manifest import SCHEMA
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.collection import RunCollection, ShownRun
from coevo_gym.view.export.curve import COLOURS
from coevo_gym.view.export.gathering import responses_to_export
from coevo_gym.view.export.write import export_pages
from coevo_gym.view.figure import CurveChart, FigureSize, RowChart, table_chart, write_figure
from coevo_gym.view.library import Library
from coevo_gym.view.model.curves import Axis, MeanCurve, mean_curves, metric_names
from coevo_gym.view.model.tables import table_curves, table_detail
from coevo_gym.view.refusals import Damaged
from tests import needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("matplotlib", reason="install the extra `[plot]`")
from PIL import Image

RESULTS = Path(__file__).parents[2] / "results"
all_programs = pytest.mark.skipif(bool(needs.figures()), reason=needs.figures())
SIZES_IN = {"column": 3.25, "page": 6.75}


def published(name: str, **choices: Any) -> ResultTable:
    """A published table, from its file of cells."""
    cells = RESULTS / f"{name}.jsonl"
    return build_finished_table(
        choose_cells(load_experiment(name), Path("nowhere"), records=cells, **choices)
    )


@pytest.fixture(scope="module")
def charts() -> dict[str, CurveChart | RowChart]:
    return {name: table_chart(published(name)) for name in ("lm_first", "rbc_webshop")}


# ---- pictures -----------------------------------------------------------------------------------


def as_png(path: Path, chromium: Browser | None = None) -> Image.Image:
    """The picture in a file, 300 dots to an inch, as another program draws it."""
    target = path.with_name(f"{path.name}-{'browser' if chromium else 'pictures'}.png")
    if chromium is not None:
        html = path.with_suffix(".html")  # 96 pixels to an inch
        html.write_text(f'<img src="{path.name}" style="zoom: {300 / 96}; display: block">')
        page = chromium.new_page(viewport={"width": 2200, "height": 1200})
        page.goto(html.as_uri())
        page.locator("img").screenshot(path=target)
        page.close()
    elif path.suffix == ".svg":
        options = ["--zoom", str(300 / 96), "--background-color", "white"]
        subprocess.run(["rsvg-convert", *options, "-o", target, path], check=True)
    elif path.suffix == ".pdf":
        stem = target.with_suffix("")
        subprocess.run(["pdftoppm", "-r", "300", "-png", "-singlefile", path, stem], check=True)
    else:
        target = path
    return Image.open(target).convert("RGB")


def difference(a: Image.Image, b: Image.Image) -> float:
    """Mean absolute difference of two pictures, at a tenth of their size, from 0 to 1."""
    size = (a.width // 10, a.height // 10)
    small = [np.asarray(one.resize(size, Image.Resampling.BOX), dtype=float) for one in (a, b)]
    return float(np.abs(small[0] - small[1]).mean()) / 255


def shows(image: Image.Image, colour: str) -> bool:
    """Return True if at least 20 pixels of a picture differ little from a colour."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(np.asarray(image, dtype=int) - rgb).max(axis=2) <= 12).sum()) >= 20


@all_programs
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("size", ["column", "page"])
@pytest.mark.parametrize("name", ["lm_first", "rbc_webshop"])
def test_every_program_draws_the_same_picture(
    charts: Mapping[str, CurveChart | RowChart],
    chromium: Browser,
    tmp_path: Path,
    name: str,
    size: FigureSize,
) -> None:
    files = [tmp_path / f"figure{suffix}" for suffix in (".png", ".svg", ".pdf")]
    for file in files:
        write_figure(charts[name], file, size)
    pictures = [as_png(file) for file in files] + [as_png(files[1], chromium)]
    first, *others = pictures
    assert first.width == round(300 * SIZES_IN[size])
    chart = charts[name]
    lines = len(chart.curves) + len(chart.levels) if isinstance(chart, CurveChart) else 6
    for image in others:
        assert abs(image.width - first.width) <= 1
        assert abs(image.height - first.height) <= 1
        assert difference(first, image) < 0.01
    for image in pictures:
        assert all(shows(image, colour) for colour in COLOURS[:lines])
        assert not any(shows(image, colour) for colour in COLOURS[lines:5])  # the last is grey
    blank = Image.new("RGB", first.size, "white")
    assert difference(first, blank) > 0.02  # the comparison would notice a missing picture


def test_files_have_plain_colours_embedded_fonts_and_no_times(
    charts: Mapping[str, CurveChart | RowChart], tmp_path: Path
) -> None:
    contents = []
    for number in range(2):
        for suffix in (".pdf", ".svg", ".png"):
            write_figure(charts["lm_first"], tmp_path / f"{number}{suffix}", "column")
            contents.append((tmp_path / f"{number}{suffix}").read_bytes())
    pdf, svg, png = contents[:3]
    assert contents[3:] == [pdf, svg, png]
    assert b"/FontFile2" in pdf  # TrueType
    assert b"/Type3" not in pdf
    assert not [word for word in (b"var(", b"light-dark", b"<text", b"@import") if word in svg]
    assert png.startswith(b"\x89PNG")


def test_odd_labels_are_drawn_as_they_are(tmp_path: Path) -> None:
    labels = ["_private", "$x^2$ \\frac{", "a" * 200, "\u202eback\x00", "", "100 %"]
    curves = [MeanCurve(label, 1, (0.0, 1.0), (0.1, float(i))) for i, label in enumerate(labels)]
    axis = Axis("loss $")
    for suffix in (".svg", ".pdf", ".png"):
        write_figure(CurveChart(axis, axis, curves, {}), tmp_path / f"x{suffix}", "column")


@all_programs
@pytest.mark.parametrize("name", ["lm_first", "rbc_webshop"])
def test_the_figures_of_the_documentation_are_those_of_its_commands(
    charts: Mapping[str, CurveChart | RowChart], tmp_path: Path, name: str
) -> None:
    (tmp_path / "shown.svg").write_bytes(
        (RESULTS.parent / f"docs/pictures/{name}.svg").read_bytes()
    )
    write_figure(charts[name], tmp_path / "now.svg", "column")
    assert difference(*(as_png(tmp_path / f"{when}.svg") for when in ("shown", "now"))) < 0.002


# ---- numbers ------------------------------------------------------------------------------------


def test_a_table_with_curves_is_drawn_as_curves_and_others_as_rows(
    charts: Mapping[str, CurveChart | RowChart],
) -> None:
    curves, rows = charts["lm_first"], charts["rbc_webshop"]
    assert isinstance(curves, CurveChart)
    assert [(one.label, one.seeds) for one in curves.curves] == [
        ("static", 2),
        ("coevolve", 2),
        ("coevolve_rbc", 2),
    ]
    static = published("lm_first").lines[1]
    assert curves.levels == {"warm-up": pytest.approx(0.33)}
    assert curves.curves[0].mean[-1] == pytest.approx(static.mean, abs=0.01)
    assert isinstance(rows, RowChart)
    assert [len(row.values) for row in rows.rows] == [10] * 6
    assert isinstance(table_chart(published("lm_first", metric="hours")), RowChart)


def test_a_table_without_finished_cells_has_nothing_to_draw() -> None:
    table = build_finished_table(choose_cells(load_experiment("controls"), Path("nowhere")))
    with pytest.raises(ConfigError, match="no finished cells, so there is nothing to plot"):
        table_chart(table)


def logged(
    folder: Path,
    name: str,
    points: Sequence[tuple[int, int, float]],
    *,
    seed: int = 0,
    sets: Sequence[str] = (),
    arm: str = "static",
) -> ShownRun:
    """A run that has logged an evaluation at each (step, env steps, success)."""
    config = load_config(
        "quickstart", sets=[f"name={name}", f"seed={seed}", f"arms={arm}", *sets], environ={}
    ).config
    path = folder / name
    path.mkdir(parents=True)
    manifest = {"schema": SCHEMA, "config": config.to_json()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    lines = [
        {"event": "eval", "arm": arm, "step": step, "env_steps": env, "eval.success_rate": success}
        for step, env, success in points
    ]
    lines += [
        {
            "event": "step", "arm": arm, "step": step, "env_steps": env, "success": 1 - success,
            "loss": math.nan if step == 2 else step / 10, "note": "text", "done": True,
        }
        for step, env, success in points
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return RunCollection(Library([RunFolder(path)])).runs()[0]


THREE = (
    [(0, 0, 0.2), (1, 100, 0.4), (2, 200, 0.6)],
    [(0, 0, 0.1), (1, 50, 0.3), (2, 250, 0.5)],
    [(0, 0, 0.3), (1, 100, 0.5), (2, 150, 0.7)],
)


@pytest.fixture
def three(tmp_path: Path) -> list[ShownRun]:
    return [logged(tmp_path, f"s{seed}", points, seed=seed) for seed, points in enumerate(THREE)]


def test_the_mean_over_seeds_covers_what_all_seeds_cover(three: list[ShownRun]) -> None:
    (curve,) = mean_curves(three)
    assert (curve.label, curve.seeds) == ("static", 3)
    assert curve.x == (0, 50, 100, 150)  # the shortest run ends at 150
    at_100 = [0.4, 0.3 + 0.2 * 50 / 200, 0.5]  # the second run has no point there
    mean, sd = mean_and_sd(at_100)
    assert curve.mean[2] == pytest.approx(mean)
    assert (curve.low[2], curve.high[2]) == (pytest.approx(mean - sd), pytest.approx(mean + sd))
    (with_interval,) = mean_curves(three, band="interval")
    assert (with_interval.low[2], with_interval.high[2]) == pytest.approx(mean_interval(at_100))


def test_with_two_seeds_there_is_a_deviation_but_no_interval(three: list[ShownRun]) -> None:
    assert mean_curves(three[:2])[0].low
    assert not mean_curves(three[:2], band="interval")[0].low
    assert not mean_curves(three[:1])[0].low


def test_any_logged_metric_can_be_an_axis(three: list[ShownRun]) -> None:
    names = metric_names(three)
    assert names == {"eval": ["success"], "step": ["training_success", "loss"]}
    (curve,) = mean_curves(three[:1], "step", "training_success")
    assert (curve.x, curve.mean) == ((0, 1, 2), pytest.approx((0.8, 0.6, 0.4)))
    (curve,) = mean_curves(three[:1], "loss", "success")
    assert curve.x == (0.0, 0.1)  # the loss of the last step is not finite
    with pytest.raises(ConfigError, match="decreases during the training of static in s0"):
        mean_curves(three[:1], "training_success", "loss")


def test_runs_with_other_settings_are_other_lines(tmp_path: Path, three: list[ShownRun]) -> None:
    other = logged(tmp_path, "slow", THREE[0], sets=["learner.lr=1e-4"])
    assert [(one.label, one.seeds) for one in mean_curves([*three, other])] == [
        ("static (s0, s1, s2)", 3),
        ("static (slow)", 1),
    ]
    assert [one.label for one in mean_curves(three, arms={"static": "Fixed set"})] == ["Fixed set"]


def test_runs_that_are_no_seeds_of_each_other_are_refused(
    tmp_path: Path, three: list[ShownRun]
) -> None:
    twin = logged(tmp_path, "twin", THREE[0])
    with pytest.raises(ConfigError, match=r"s0 and twin are the same seed \(0\) of the arm static"):
        mean_curves([*three, twin])
    kitchen = logged(tmp_path, "kitchen", THREE[0], sets=["benchmark.name=alfworld"])
    message = "different benchmarks: s0 is of webshop, kitchen is of alfworld. Plot one at a time"
    with pytest.raises(ConfigError, match=message):
        mean_curves([*three, kitchen])
    late = logged(tmp_path, "late", [(3, 900, 0.5)], seed=9)
    with pytest.raises(ConfigError, match="no common range: that of late begins at 900"):
        mean_curves([*three, late])


# ---- tables in the viewer -----------------------------------------------------------------------


def test_a_table_from_a_file_of_cells_is_shown_with_its_curves(tmp_path: Path) -> None:
    table = published("lm_first")
    write_table(tmp_path / "lm_first", table)
    collection = RunCollection(Library([str(tmp_path / "lm_first")]))
    assert collection.library.home == "tables/lm_first"
    detail = table_detail(collection, "lm_first")
    assert [line.mean for line in detail.lines] == [line.mean for line in table.lines]
    assert detail.lines[2].comparisons[0]["seeds"] == 2
    assert {(cell.row, cell.seed, cell.run) for cell in detail.cells if cell.row == "static"} == {
        ("static", 1, None),
        ("static", 2, None),
    }
    chart = table_chart(table)
    assert isinstance(chart, CurveChart)
    curves = table_curves(collection, "lm_first").curves
    assert [one.label for one in curves] == [one.label for one in chart.curves]
    assert curves[0].mean == chart.curves[0].mean
    answers = {answer.path: answer.value for answer in responses_to_export(collection)}
    assert answers["tables/lm_first"]["title"] == table.title
    assert len(answers["tables/lm_first/curves"]["curves"]) == 3
    page = export_pages(collection.library, tmp_path / "table.html").page
    assert page.read_text(encoding="utf-8").count('data-home="tables/lm_first"') == 1


def test_a_table_that_is_not_written_yet_shows_its_runs(tmp_path: Path) -> None:
    for seed, points in enumerate(THREE):
        logged(tmp_path / "new", f"static-{seed}", points, seed=seed)
    logged(tmp_path / "new", "late-0", [], arm="coevolve")
    summary = {"table": [{"name": "static", "success": 0.6}]}
    (tmp_path / "new/static-0/summary.json").write_text(json.dumps(summary))
    collection = RunCollection(Library([str(tmp_path / "new")]))
    detail = table_detail(collection, "new")
    assert not detail.written
    assert [(line.key, line.seeds, line.mean) for line in detail.lines][1] == ("static", 1, 0.6)
    assert len(detail.cells) == 4
    assert {cell.run for cell in detail.cells} >= {"new~late-0", "new~static-1"}
    assert [one.seeds for one in table_curves(collection, "new").curves] == [3]


def test_a_damaged_table_says_how_to_write_it_again(tmp_path: Path) -> None:
    for content in ("[]", "{", '{"lines": [{}]}'):
        (tmp_path / "table.json").write_text(content)
        collection = RunCollection(Library([str(tmp_path)]))
        with pytest.raises(Damaged):
            table_detail(collection, tmp_path.name)
