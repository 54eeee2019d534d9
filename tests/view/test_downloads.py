"""Downloads of the viewer's charts and tables for other programs: pictures, CSV and JSON."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="install the extra `[dev]`")

from PIL import Image
from playwright.sync_api import Browser, Locator

from coevo_gym.view.export.curve import COLOURS
from tests import needs
from tests.view import browsing, made_up
from tests.view.browsing import Visit
from tests.view.test_charts import CHARTS, HOSTILE, draw, line, lines
from tests.view.test_figures import shows

pytestmark = pytest.mark.xdist_group("browser")
WIDE: Any = {"width": 1200, "height": 800}


@pytest.fixture(scope="module", params=["light", "dark"])
def visit(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    options = {"viewport": WIDE, "color_scheme": request.param}
    with browsing.visit(chromium, made_up.ANSWERS, **options) as visit:
        yield visit


def download(at: Locator, kind: str, folder: Path, number: int = 0) -> Path:
    """The file that a button saves."""
    with at.page.expect_download() as saving:
        at.locator(f"[aria-label^='Download as {kind}']").nth(number).click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    return path


def rows_of(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.skipif(bool(needs.figures()), reason=needs.figures())
@pytest.mark.parametrize("kind", CHARTS)
def test_the_picture_of_a_chart_is_the_same_in_other_programs(
    visit: Visit, kind: str, tmp_path: Path
) -> None:
    chart = draw(visit, CHARTS[kind])
    file = download(chart, "SVG", tmp_path)
    assert file.name == f"{CHARTS[kind]['title'].lower()}.svg"
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"var\(|light-dark|oklab|color-mix|rgb|class=|style|href", text)
    assert f">{CHARTS[kind]['title']}</text>" in text
    browser_page = visit.page.context.new_page()
    browser_page.goto(file.as_uri())
    browser_page.locator("svg").first.screenshot(path=tmp_path / "browser.png")
    browser_page.close()
    subprocess.run(["rsvg-convert", "-o", tmp_path / "other.png", file], check=True)
    images = [Image.open(tmp_path / name).convert("RGB") for name in ("browser.png", "other.png")]
    size = (images[1].width // 8, images[1].height // 8)
    small = [np.asarray(one.resize(size, Image.Resampling.BOX), dtype=float) for one in images]
    assert np.abs(small[0] - small[1]).mean() / 255 < 0.02  # fonts differ
    for image in images:
        assert image.getpixel((1, 1)) == (255, 255, 255)  # in dark mode, too
        if kind in ("lines", "columns", "rows"):
            assert all(shows(image, colour) for colour in COLOURS[:2])


def test_hidden_lines_and_hostile_names_are_not_in_a_picture(visit: Visit, tmp_path: Path) -> None:
    chart = draw(
        visit, lines(line("shown", 0.1, 0.2), line("unseen", 0.3, 0.4), line(HOSTILE, 0.2))
    )
    chart.get_by_role("button", name="unseen").click()
    text = download(chart, "SVG", tmp_path).read_text(encoding="utf-8")
    assert "shown" in text
    assert "unseen" not in text
    assert "<img" not in text
    assert "\u202e" not in text


def test_a_chart_gives_exact_numbers(visit: Visit, tmp_path: Path) -> None:
    points = [{"x": 1000, "y": 1 / 3, "low": 0.25, "high": 0.5}, {"x": 2000.5, "y": None}]
    chart = draw(visit, lines({"label": "=1+1", "points": points}, title="A title, 95 %", note="n"))
    head, first, second = rows_of(download(chart, "CSV", tmp_path))
    assert head == ["name", "env steps", "success", "low", "high"]
    assert first == ["'=1+1", "1000", repr(1 / 3), "0.25", "0.5"]
    assert second == ["'=1+1", "2000.5", "", "", ""]
    file = download(chart, "JSON", tmp_path)
    assert file.name == "a-title-95.json"
    assert json.loads(file.read_text()) == {
        "title": "A title, 95 %",
        "note": "n",
        "columns": head,
        "rows": [["=1+1", 1000, 1 / 3, 0.25, 0.5], ["=1+1", 2000.5, None, None, None]],
    }


def test_every_chart_and_table_of_every_page_can_be_downloaded(visit: Visit) -> None:
    visit.go("#/")
    tables = charts = 0
    for place in made_up.PLACES.values():
        visit.jump(place)
        main = visit.page.locator("main")
        pictures = main.locator(".chart-drawing").count()
        lists = main.locator("table.list, table.cross").count()
        assert main.locator("[aria-label^='Download as SVG']").count() == pictures
        assert main.locator("[aria-label^='Download as CSV']").count() == pictures + lists
        assert main.locator("[aria-label^='Download as JSON']").count() == pictures + lists
        tables, charts = tables + lists, charts + pictures
    assert tables > 15
    assert charts > 10
    assert not visit.complaints


def test_a_table_gives_all_fields_of_its_rows(visit: Visit, tmp_path: Path) -> None:
    visit.go(made_up.PLACES["run"])
    table = visit.page.locator("main")
    head, *rows = rows_of(download(table, "CSV", tmp_path))
    arms = made_up.ANSWERS[f"runs/{made_up.RUN}"]["arms"]
    assert json.loads(download(table, "JSON", tmp_path).read_text()) == arms
    assert [row[head.index("name")] for row in rows] == [arm["name"] for arm in arms]
    assert rows[-1][head.index("signals.boundary")] == "80"


def test_the_rows_of_a_table_are_those_of_the_command(visit: Visit, tmp_path: Path) -> None:
    visit.go(made_up.PLACES["table"])
    head, *rows = rows_of(download(visit.page.locator("main"), "CSV", tmp_path))
    assert [row[head.index("against.baseline")] for row in rows] == ["", "", "static"]
    assert rows[2][head.index("against.low")] == "0.05"
    assert rows[0][head.index("columns.env_steps")] == "80000"


def test_a_table_of_models_gives_a_row_for_each_result(visit: Visit, tmp_path: Path) -> None:
    visit.go(made_up.PLACES["eval-table"])
    head, *rows = rows_of(download(visit.page.locator("main"), "CSV", tmp_path))
    assert head[:6] == ["row", "column", "state", "planned", "seeds", "tasks"]
    assert [(row[0], row[1], row[head.index("success")]) for row in rows] == [
        ("large", "shop", "0.5"),
        ("large", "files", "0.5"),
        ("small", "shop", ""),
        ("small", "files", ""),
    ]


def test_a_list_gives_the_rows_of_all_its_pages(chromium: Browser, tmp_path: Path) -> None:
    place = f"runs/{made_up.RUN}/trajectories"
    page = made_up.ANSWERS[place] | {"total": 600, "pages": 2, "per_page": 500}
    with browsing.visit(chromium, made_up.ANSWERS | {place: page}) as visit:
        visit.go(f"#/{place}?arm=coevolve&page=2")
        rows = json.loads(download(visit.page.locator("main"), "JSON", tmp_path).read_text())
        assert len(rows) == 2 * len(page["rows"])
        asked = [parameters for path, parameters in visit.asked if path == place][-2:]
        expected = {"arm": ["coevolve"], "per_page": ["500"]}
        assert asked == [expected | {"page": [number]} for number in ("1", "2")]


def test_a_download_that_fails_says_why(chromium: Browser) -> None:
    place = f"runs/{made_up.RUN}/trajectories"
    with browsing.visit(chromium, made_up.ANSWERS) as visit:
        visit.go(f"#/{place}")
        visit.page.unroute("**/*")
        visit.page.unroute(f"{browsing.ADDRESS}/**")
        visit.page.route("**/*", lambda route: route.abort())
        visit.page.locator("[aria-label^='Download as CSV']").click()
        visit.page.get_by_text("The viewer was stopped. Start `coevo view` again").wait_for()
