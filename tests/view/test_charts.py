"""Charts in a real browser: what they draw and say, and that colour is never needed alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="install the extra `[dev]`")

from playwright.sync_api import Browser, Locator

from tests.view import browsing
from tests.view.browsing import Visit
from tests.view.made_up_evals import ANSWERS

pytestmark = pytest.mark.xdist_group("browser")

HOSTILE = "<img src=x onerror=alert(1)> \u202eright to left \x00"
SHARE = {"label": "success", "format": "percent"}
STEPS = {"label": "env steps"}


def line(label: str, *values: float | None, **more: Any) -> dict[str, Any]:
    return {"label": label, "points": [{"x": 10 * i, "y": y} for i, y in enumerate(values)], **more}


def lines(*series: dict[str, Any], **more: Any) -> dict[str, Any]:
    axes = {"x": STEPS, "y": SHARE}
    return {"kind": "lines", "title": "Lines", "series": list(series), **axes, **more}


FILLS = [{"label": label} for label in ("forgetting", "boundary", "rare", "other")]
CHARTS: dict[str, dict[str, Any]] = {
    "lines": lines(
        line("static", 0.25, 0.375),
        line("evolved", 0.25, 0.625, bold=True),
        rounds=[{"label": "evolved", "style": 1, "at": [3, 7]}],
    ),
    "columns": {
        "kind": "columns", "title": "Columns", "stacked": True, "fills": FILLS,
        "columns": [
            {"label": "1", "values": [3, 4, 5, 1]},
            {"label": "2", "values": [0, 17, 2, 9]},
        ],
        "x": {"label": "round"}, "y": {"label": "signals"},
    },
    "rows": {
        "kind": "rows", "title": "Rows", "fills": FILLS[:2], "x": {"label": "drafts"},
        "rows": [
            {"label": "duplicate", "values": [812, 3]},
            {"label": "replay", "values": [40, 1]},
        ],
    },
    "intervals": {
        "kind": "intervals", "title": "Intervals", "x": {**SHARE, "domain": [0, 1]}, "at": 0.5,
        "rows": [
            {"label": "fashion", "value": 0.61, "low": 0.5, "high": 0.7, "said": "of 31"},
            {"label": "grocery", "value": None, "low": None, "high": None, "said": "of 0"},
        ],
    },
    "heat": {
        "kind": "heat", "title": "Heat", "columns": ["D_0", "1", "2"],
        "x": {"label": "after round"}, "y": {"label": "task"},
        "rows": [{"label": "a jacket"}, {"label": "a hat"}],
        "cells": [{"row": 0, "column": 0, "value": 0.125}, {"row": 1, "column": 2, "value": 1}],
    },
    "lineage": {
        "kind": "lineage", "title": "Lineage",
        "nodes": [
            {"id": "c", "parents": ["b", "a"], "label": "a blue hat", "round": 3, "here": True},
            {"id": "a", "parents": [], "label": "a hat", "round": 0, "href": "#/evals"},
            {"id": "b", "parents": ["a"], "label": "a warm hat", "round": 1, "kind": "rare"},
        ],
    },
}  # fmt: skip
SAID = {
    "lines": ["static", "10", "37.5\u202f%"],
    "columns": ["2", "0", "17", "2", "9"],
    "rows": ["duplicate", "812", "3"],
    "intervals": ["fashion", "61.0\u202f%", "50.0\u202f% to 70.0\u202f%", "of 31"],
    "heat": ["a hat", "–", "–", "100.0\u202f%"],
    "lineage": ["a blue hat", "round 3", "a warm hat; a hat", "–", ""],
}


@pytest.fixture(scope="module")
def visit() -> Iterator[Visit]:
    with browsing.browser() as browser, opened(browser) as visit:
        yield visit


def opened(browser: Browser) -> Any:
    return browsing.visit(browser, ANSWERS, viewport={"width": 1000, "height": 700})


def draw(visit: Visit, chart: dict[str, Any], width: int = 800, part: str = "Chart") -> Locator:
    """A chart, or another part of a page, in a width of its own."""
    if not visit.page.url.startswith(browsing.ADDRESS):
        visit.go("#/evals")
    visit.page.evaluate(
        """([chart, width, part]) => {
          document.getElementById("drawn")?.remove();
          const box = document.createElement("div");
          box.id = "drawn";
          box.style.width = `${width}px`;
          document.body.append(box);
          coevo.render(coevo.h(coevo[part], chart), box);
        }""",
        [chart, width, part],
    )
    return visit.page.locator("#drawn")


def numbers(chart: Locator) -> list[list[str]]:
    chart.locator("summary").click()
    chart.locator("tbody tr").first.wait_for()
    cells: list[list[str]] = chart.locator("tbody tr").evaluate_all(
        "all => all.map(row => [...row.querySelectorAll('th, td')].map(cell => cell.innerText))"
    )
    return cells


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_has_a_drawing_a_title_and_a_table_of_numbers(visit: Visit, kind: str) -> None:
    chart = draw(visit, CHARTS[kind])
    picture = chart.locator(".chart-drawing > svg")
    assert picture.get_attribute("role") == "img"
    assert picture.get_attribute("aria-label") == CHARTS[kind]["title"]
    assert chart.locator("figcaption").inner_text() == CHARTS[kind]["title"]
    assert picture.locator("style").count() == 0
    assert SAID[kind] in numbers(chart)
    assert not visit.complaints


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_fits_into_a_narrow_page(visit: Visit, kind: str) -> None:
    chart = draw(visit, CHARTS[kind], width=320)
    edges = chart.locator("svg text").evaluate_all("all => all.map(t => t.getBBox().width)")
    assert max(edges) <= 320
    assert chart.locator(".chart-drawing > svg").get_attribute("width") == "320"
    assert not visit.complaints


def test_colours_follow_the_page_without_redrawing_the_chart(visit: Visit) -> None:
    chart = draw(visit, CHARTS["lines"])
    stroke = "path => getComputedStyle(path).stroke"
    path = chart.locator("[aria-label=line] path").first
    before = path.element_handle()
    light = path.evaluate(stroke)
    visit.page.emulate_media(color_scheme="dark")
    try:
        assert path.evaluate(stroke) != light
        assert path.evaluate("(now, before) => now === before", before)
        visit.page.emulate_media(color_scheme="light", media="print")
        assert path.evaluate(stroke) == light
    finally:
        visit.page.emulate_media(color_scheme="light", media="screen")


def test_lines_and_bars_differ_by_more_than_colour(visit: Visit) -> None:
    series = [line(f"arm {i}", 0.1 * i, 0.1 * i) for i in range(9)]
    chart = draw(visit, lines(*series))
    samples = chart.locator(".chart-legend svg")
    paths = samples.evaluate_all(
        """all => all.map(svg => [...svg.querySelectorAll("path")].map(
          path => [path.getAttribute("stroke-dasharray"), path.getAttribute("d")].join()).join())"""
    )
    with_colour = samples.evaluate_all("all => all.map(svg => svg.innerHTML)")
    assert len(set(paths[:6])) == 6
    assert len(set(with_colour)) == 9
    chart = draw(visit, CHARTS["columns"])
    hatches = chart.locator(".chart-drawing rect").evaluate_all(
        "all => all.map(rect => rect.closest('[fill^=url]')?.getAttribute('fill') || '')"
    )
    assert len({name.rsplit("-", 1)[-1] for name in hatches}) == 4


def test_missing_numbers_leave_a_gap(visit: Visit) -> None:
    chart = draw(visit, lines(line("a", 0.1, 0.2, None, 0.3, 0.2)))
    path = chart.locator("[aria-label=line] path").get_attribute("d")
    assert path is not None
    assert path.count("M") == 2
    assert ["a", "20", "–"] in numbers(chart)


def test_a_chart_without_numbers_shows_a_message(visit: Visit) -> None:
    chart = draw(visit, lines(line("a", None), none="Nothing was measured."))
    assert "Nothing was measured." in chart.inner_text()
    assert not chart.locator("svg").count()


def test_ten_thousand_points_are_one_line_and_a_shortened_table(visit: Visit) -> None:
    chart = draw(visit, lines(line("a")))
    visit.page.evaluate(
        """chart => {
          const points = d3.range(10000).map(i => ({ x: i, y: (i % 100) / 100 }));
          const many = { ...chart, series: [{ label: "a", points }] };
          coevo.render(coevo.h(coevo.Chart, many), document.getElementById("drawn"));
        }""",
        lines(),
    )
    path = chart.locator("[aria-label=line] path").get_attribute("d")
    assert path is not None
    assert path.count("L") == 9_999
    assert not chart.locator("[aria-label=dot]").count()
    assert len(numbers(chart)) == 200
    assert "200 of 10,000 rows" in chart.inner_text()


def test_a_line_can_be_hidden_and_shown_with_the_keyboard(visit: Visit) -> None:
    chart = draw(visit, CHARTS["lines"])
    curves = chart.locator("[aria-label=line]")
    assert curves.count() == 2
    button = chart.locator(".chart-legend button").first
    button.focus()
    visit.page.keyboard.press("Enter")
    chart.locator("[aria-pressed=false]").wait_for()
    assert curves.count() == 1
    visit.page.keyboard.press("Enter")
    chart.locator("[aria-pressed=false]").wait_for(state="detached")
    assert curves.count() == 2


@pytest.mark.parametrize("kind", ["lines", "rows", "heat", "lineage", "intervals"])
def test_hostile_labels_are_shown_as_text(visit: Visit, kind: str) -> None:
    key = {"lines": "series", "lineage": "nodes"}.get(kind, "rows")
    items = [{**item, "label": HOSTILE * 200} for item in CHARTS[kind][key]]
    chart = draw(visit, {**CHARTS[kind], key: items})
    numbers(chart)
    assert not chart.locator("img").count()
    labels = chart.locator("svg text").all_text_contents()
    assert not any(mark in text for text in labels for mark in "\u202e\x00")
    assert not visit.complaints


def test_a_tooltip_shows_the_point_next_to_the_pointer(visit: Visit) -> None:
    chart = draw(visit, {**CHARTS["lines"], "x": {"label": "env steps, exploration included"}})
    chart.locator("[aria-label=dot] path").nth(1).hover(force=True)
    tip = chart.locator("[aria-label=tip] text")
    tip.wait_for()
    text = " ".join(tip.locator("tspan").all_text_contents())
    assert "success: 62.5\u202f%" in text
    assert "10 env steps" in text
    point = chart.locator("[aria-label=dot] path").nth(1).bounding_box()
    box = tip.bounding_box()
    assert point is not None
    assert box is not None
    after, before = point["x"] + point["width"], point["x"]
    assert box["x"] > after or box["x"] + box["width"] < before  # beside the point


def test_a_cyclic_lineage_shows_each_task_once(visit: Visit) -> None:
    nodes = [
        {"id": id, "parents": [parent], "label": id, "round": 1}
        for id, parent in (("a", "b"), ("b", "a"), ("c", "c"))
    ]
    chart = draw(visit, {"kind": "lineage", "title": "Lineage", "nodes": nodes})
    assert sorted(row[0] for row in numbers(chart)) == ["a", "b", "c"]


def test_a_histogram_counts_every_number_once(visit: Visit) -> None:
    draw(visit, CHARTS["lines"])
    groups = [[1, 1, 2, 40], [3, 3, 3, 39]]
    columns = visit.page.evaluate("groups => coevo.charts.histogram(groups, 20)", groups)
    assert len(columns) <= 20
    assert [sum(column["values"][i] for column in columns) for i in (0, 1)] == [4, 4]
    assert columns[0] == {"label": "1–2", "values": [3, 0]}
    assert columns[-1] == {"label": "39–40", "values": [1, 1]}


RUN = {
    "id": "shop-1",
    "arms": [
        {"name": "random", "trained": False},
        {"name": "static", "trained": True},
        {"name": "coevolve", "trained": True},
    ],
}


def test_arms_are_charted_together_over_env_steps(visit: Visit) -> None:
    charts = draw(visit, {"run": RUN}, part="ArmsOverTime")
    charts.locator("figure").first.wait_for()
    titles = charts.locator("figcaption").all_inner_texts()
    assert titles == ["Pool size", "Mixed groups", "Share of exploration", "Signals"]
    pool, mixed, _, signals = charts.locator("figure").all()
    assert pool.locator(".chart-legend").inner_text().split() == ["static", "coevolve"]
    rounds = pool.locator(".chart-lane path")
    rounds.first.wait_for(state="attached")
    assert rounds.count() == 2
    assert "Not logged in this run." in mixed.inner_text()
    assert ["coevolve", "600", "6"] in numbers(signals)
    assert not visit.complaints


@pytest.mark.parametrize(
    ("arm", "columns"),
    [("coevolve", ["D_0", "1", "2"]), ("static", ["1", "2", "3", "4", "5", "6"])],
)
def test_the_rounds_map_lists_tasks_with_the_largest_fall_first(
    visit: Visit, arm: str, columns: list[str]
) -> None:
    table = ANSWERS[f"runs/shop-1/arms/{arm}/steps"]
    chart = draw(visit, {"run": "shop-1", "table": table}, part="RoundsMap")
    cells = numbers(chart)
    assert [row[0] for row in cells] == [
        "The task that falls", "The task that stays", "The task that rises",
    ]  # fmt: skip
    assert chart.locator("thead th").all_inner_texts() == ["task", *columns]
    if arm == "coevolve":
        assert cells[0][1:] == ["100.0\u202f%", "100.0\u202f%", "25.0\u202f%"]
    link = chart.locator("tbody a").first
    assert link.get_attribute("href") == "#/runs/shop-1/tasks/falls"
    chart.get_by_role("button", name="Largest rise").click()
    chart.locator("tbody tr", has_text="rises").first.wait_for()
    rows = chart.locator("tbody tr th").all_inner_texts()
    assert rows[0] == "The task that rises"
