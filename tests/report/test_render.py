"""The report as a page: structure, safety, drawings in place, and runs with parts missing."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.dom.minidom
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from coevo_gym.core.kinds import Kind, register_kind
from coevo_gym.report import render
from coevo_gym.report.data import (
    ArmCount,
    Curve,
    CurvePoint,
    EvolutionRow,
    LineageRow,
    ReportData,
    RoundRow,
    Similarity,
)
from coevo_gym.report.render import render_picture, render_report
from coevo_gym.run.table import TableRow
from tests.report import made_up

VOID = {"meta", "input", "br"}
SECTIONS = [
    "success", "episodes", "pool", "map", "signals", "labels", "similarity", "gates", "lineage",
    "warmup", "setup", "notes",
]  # fmt: skip


class Page(HTMLParser):
    """Start tags of a page with their attributes; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def chart(html: str, id: str) -> str:
    """Source of the drawing with this id."""
    found = re.search(rf'<svg class="chart"[^>]*"{id}-title {id}-desc".*?</svg>', html, re.DOTALL)
    assert found, id
    return found[0]


def one_curve(*values: float) -> ReportData:
    points = tuple(CurvePoint(1000 * i, v) for i, v in enumerate(values))
    return ReportData("t", curves=(Curve("A", points),))


def test_sections_come_in_order_and_every_link_has_a_target() -> None:
    page = Page(render_report(made_up.full()))
    assert [section["id"] for section in page.all("section")] == SECTIONS
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in page.all("a")} <= {f"#{id}" for id in ids}
    labels = [svg["aria-labelledby"].split() for svg in page.all("svg") if "role" in svg]
    assert len(labels) == 22
    assert all(id in ids for pair in labels for id in pair)


@pytest.mark.parametrize("make", [made_up.full, made_up.hostile, lambda: ReportData("t")])
def test_the_page_needs_nothing_else_and_runs_nothing(make: Callable[[], ReportData]) -> None:
    html = render_report(make())
    page = Page(html)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "style", "xlink:href", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("href", "#").startswith("#")
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "default-src 'none'" in html
    html.encode()


def test_hostile_texts_are_shown_as_they_are() -> None:
    html = render_report(made_up.hostile())
    text = "".join(Page(html).text)
    assert '<script>alert("x")</script>' in text
    assert "{{ 7 * 7 }} & &amp; " in text
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "w" * 2100 not in html


@pytest.mark.parametrize("text", ["</style><b>", "https://example.org", "é 漢字 😀 שלום"])
def test_texts_survive_in_page_and_picture(text: str) -> None:
    data = replace(made_up.full(), title=text, notes=(text,))
    assert "".join(Page(render_report(data)).text).count(text) >= 2
    picture = xml.dom.minidom.parseString(render_picture(data).encode())
    assert picture.documentElement.getAttribute("aria-label") == text


def test_same_data_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys; from tests.report import made_up; from coevo_gym.report.render import *;"
        "d = made_up.full(); page = render_report(d) + render_picture(d);"
        "sys.stdout.buffer.write(page.encode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=600
    )
    data = made_up.full()
    assert done.stdout.decode() == render_report(data) + render_picture(data)


def test_a_success_of_one_half_is_drawn_mid_axis() -> None:
    drawn = chart(render_report(one_curve(0.0, 0.5, 1.0)), "success")
    path = re.search(r'class="line bold s0" d="M(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+)"', drawn)
    assert path
    x0, y0, x1, y1, x2, y2 = map(float, path.groups())
    assert y1 == pytest.approx((y0 + y2) / 2)
    assert x1 == pytest.approx((x0 + x2) / 2)
    assert y0 > y2
    grid = [float(y) for y in re.findall(r'class="(?:grid|base)"[^>]*y1="([^"]*)"', drawn)]
    assert (max(grid), min(grid)) == (y0, y2)


def test_the_axis_fits_the_highest_value() -> None:
    for highest, top in ((0.2, "25\u202f%"), (0.45, "50\u202f%"), (0.7, "75\u202f%"), (0.9, "100")):
        assert f">{top}" in chart(render_report(one_curve(0.1, highest)), "success")


def test_bands_cover_the_intervals() -> None:
    points = (CurvePoint(0, 0.5, 0.4, 0.6), CurvePoint(10, 0.5, 0.4, 0.6))
    drawn = chart(render_report(ReportData("t", curves=(Curve("A", points),))), "success")
    band = re.search(r'class="band s0" d="M46 (\S+)L\S+ (\S+)L\S+ (\S+)L46 (\S+)Z"', drawn)
    mark = re.search(r'class="mark s0"[^>]*cy="([^"]*)"', drawn)
    assert band
    assert mark
    high, high2, low, low2 = map(float, band.groups())
    assert (high, low) == (high2, low2)
    assert (high + low) / 2 == pytest.approx(float(mark[1]), abs=0.02)


def test_whiskers_stand_at_their_shares() -> None:
    html = render_report(ReportData("t", table=(TableRow("A", 0.5, 0.4, 0.625, 0.7, 300, 10),)))
    assert 'x1="40%" x2="62.5%"' in html
    assert '<svg x="50%" y="11" overflow="visible">' in html


def test_pool_is_drawn_as_steps_and_rounds_as_ticks() -> None:
    rows = tuple(RoundRow("A", f"round-{i}", 100 * i, {}, 1, 4, 2, 10 * i) for i in (1, 2))
    html = render_report(ReportData("t", curves=one_curve(0, 1).curves, rounds=rows))
    steps = re.search(r'class="line bold s0" d="([^"]*)"', chart(html, "pool"))
    assert steps
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = re.findall(r"[ML](\S+?) ([\d.]+)", steps[1])
    assert (y0, x1, y2) == (y1, x2, y3)
    assert float(x0) < float(x1) < float(x3)
    assert float(y0) > float(y2)
    assert re.search(r'class="rug s0" d="M\S+ \S+v7M\S+ \S+v7"', chart(html, "success"))


def test_stacked_signals_stand_on_one_another() -> None:
    signals = {"rare": 1, "forgetting": 2, "boundary": 3}
    html = render_report(ReportData("t", rounds=(RoundRow("A", "r", 5, signals),)))
    pattern = r'class="bar (k-\w+)"[^>]*y="([^"]*)"[^>]*height="([^"]*)"><title>'
    bars = re.findall(pattern, chart(html, "signals"))
    assert [css for css, _, _ in bars] == ["k-forgetting", "k-boundary", "k-rare"]
    (y0, h0), (y1, h1), (y2, h2) = [(float(y), float(h)) for _, y, h in bars]
    assert y1 + h1 == pytest.approx(y0, abs=0.02)
    assert y2 + h2 == pytest.approx(y1, abs=0.02)
    assert (h0 / h2, h1 / h2) == (pytest.approx(2, abs=0.01), pytest.approx(3, abs=0.01))


def test_a_kind_of_ones_own_has_its_label_and_its_colour() -> None:
    register_kind(Kind("stuck", "goes in circles", "#123456", "#abcdef"))
    signals = {"nobodys": 1, "stuck": 2, "rare": 3}
    row = LineageRow("t", "Buy it.", arm="A", signal="stuck")
    data = ReportData("t", rounds=(RoundRow("A", "r", 5, signals),), lineage=(row,))
    html = render_report(data)
    drawn = chart(html, "signals")
    bars = re.findall(r'class="bar (k-\w+)"', drawn)
    assert list(dict.fromkeys(bars)) == ["k-rare", "k-stuck", "k-other"]
    assert "goes in circles" in drawn
    assert "nobodys" in drawn
    assert ".k-stuck { --c: #123456; }" in html
    assert ".k-stuck { --c: #abcdef; }" in html
    assert '<span class="kind k-stuck"><b>goes in circles</b></span>' in html


def test_similarity_is_a_share_of_each_set() -> None:
    sets = (Similarity("few", (1, 1)), Similarity("many", (100, 100)), Similarity("none", (0, 0)))
    drawn = chart(render_report(ReportData("t", similarity=sets)), "similarity")
    heights = re.findall(r'class="bar s\d"[^>]*height="([^"]*)"><title>', drawn)
    assert len(heights) == 4
    assert len(set(heights)) == 1


def test_gates_are_summed_and_sorted() -> None:
    counts = (ArmCount("A", "schema", 1), ArmCount("A", "build", 5), ArmCount("A", "build", 2))
    drawn = chart(render_report(ReportData("t", rejections=counts)), "gates")
    assert drawn.index(">build<") < drawn.index(">schema<")
    assert ">7</text>" in drawn


def test_every_evolved_task_is_shown_on_a_page() -> None:
    html = render_report(replace(made_up.full(), lineage=made_up.lineage(504)))
    page = Page(html)
    assert html.count('<details class="task') == 504
    assert "504 evolved tasks, oldest first" in html
    assert all(f"webshop/evolved/{i:012x}" in html for i in range(504))
    pages = [div["class"] for div in page.all("div") if div.get("class", "").startswith("page ")]
    assert pages == [f"page page-{number}" for number in range(1, 12)]
    radios = [item for item in page.all("input") if item["name"] == "page"]
    assert [item["id"] for item in radios] == [f"page-{number}" for number in range(1, 12)]
    assert [item["id"] for item in radios if "checked" in item] == ["page-1"]
    assert "501–504" in html
    assert len(html) < 3_000_000


def test_pages_need_no_style_to_be_read_and_all_are_printed() -> None:
    html = render_report(replace(made_up.full(), lineage=made_up.lineage(120)))
    hiding = [line for line in html.splitlines() if ".page {" in line and "none" in line]
    assert len(hiding) == 1
    assert html.index("@supports selector(:has(*))") < html.index(hiding[0])
    assert ".page { display: block !important; }" in html.split("@media print")[1]
    assert 'name="page"' not in render_report(made_up_with(50))
    assert 'name="page"' in render_report(made_up_with(51))


def test_many_pages_are_larger_ones() -> None:
    html = render_report(made_up_with(2001))
    assert html.count('<div class="page ') == 21
    assert "101–200" in html
    assert "2001–2001" in html


def made_up_with(n: int) -> ReportData:
    return replace(made_up.full(), lineage=made_up.lineage(n))


def test_a_report_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_up.lineage(300)
    monkeypatch.setattr(render, "MAX_LINEAGE", 60_000)
    html = render_report(replace(made_up.full(), lineage=rows))
    n = html.count('<details class="task')
    assert 60 < n < 200
    assert f"{n} of 300 evolved tasks, evenly from the first to the last" in html
    assert "webshop/evolved/000000000000" in html
    assert f"webshop/evolved/{299:012x}" in html
    long = replace(rows[0], actions=("x" * 10_000,) * 1000, instruction="y" * 100_000)
    assert len(render_report(ReportData("t", lineage=(long,) * 300))) < 1_000_000


def test_lineage_is_filtered_by_style_rules_alone() -> None:
    html = render_report(made_up.full())
    page = Page(html)
    filters = {item["id"] for item in page.all("input")}
    for kind in ("forgetting", "boundary", "rare", "blind"):
        assert f"only-is-{kind}" in filters
        assert f".origins:has(#only-is-{kind}:checked) .task:not(.is-{kind})" in html
    assert "is-unguided" not in html


def test_an_unserved_task_says_so_and_a_failed_one_has_a_number() -> None:
    rows = made_up.lineage(2)
    html = render_report(
        ReportData("t", lineage=(rows[0], replace(rows[1], served=8, success=0.0)))
    )
    assert "never served" in html
    assert "0.0\u202f% of 8 episodes solved" in html


NAN_POINT = CurvePoint(math.nan, math.nan, math.nan, math.nan)
ODD = {
    "nothing": ReportData("t"),
    "one point": one_curve(0.3),
    "one interval": ReportData("t", curves=(Curve("A", (CurvePoint(0, 0.3, 0.2, 0.4),)),)),
    "no points": ReportData("t", curves=(Curve("A"), Curve("B"))),
    "all NaN": ReportData(
        "t", table=(TableRow("A", math.nan),), curves=(Curve("A", (NAN_POINT,)),),
        training=(Curve("A", (NAN_POINT,)),), warmup_loss=(math.nan, math.inf),
    ),
    "a gap": one_curve(0.1, math.nan, 0.3),
    "zero tasks": ReportData("t", table=(TableRow("A", math.nan, n_tasks=0),)),
    "idle rounds": ReportData("t", rounds=(RoundRow("A", "r", 0), RoundRow("A", "s", math.nan))),
    "empty sets": ReportData("t", similarity=(Similarity("D_0", ()), Similarity("e", (0,)))),
    "nothing rejected": ReportData("t", rejections=(ArmCount("A", "build", 0),)),
    "one loss": ReportData("t", warmup_loss=(1.0,)),
    "empty names": ReportData("", table=(TableRow("", 0.5),), rounds=(RoundRow("", "", 1),)),
    "many arms": ReportData(
        "t", curves=tuple(Curve(f"arm {i}", (CurvePoint(0, 0.5),) * 2) for i in range(20))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_runs_are_drawn_without_nonsense(name: str) -> None:
    html, picture = render_report(ODD[name]), render_picture(ODD[name])
    Page(html)
    xml.dom.minidom.parseString(picture.encode())
    for text in (html, picture):
        assert not re.search(r'="[^"]*\b(nan|inf|None)\b', text)
        assert not re.search(r">(nan|inf|None)", text)


def test_missing_parts_are_named() -> None:
    text = "".join(Page(render_report(ReportData("t"))).text)
    for words in ("no evaluation on held-out tasks", "No rounds of evolution", "No evolved task",
                  "No draft was rejected", "no manifest", "no notes"):  # fmt: skip
        assert words in text


def test_a_gap_in_a_curve_is_not_bridged() -> None:
    drawn = chart(render_report(one_curve(0.1, 0.2, math.nan, 0.3, 0.4)), "success")
    path = re.search(r'class="line bold s0" d="([^"]*)"|class="line s0" d="([^"]*)"', drawn)
    assert path
    assert (path[1] or path[2]).count("M") == 2


def test_the_picture_stands_alone() -> None:
    picture = render_picture(made_up.full())
    root = xml.dom.minidom.parseString(picture.encode()).documentElement
    assert root.tagName == "svg"
    assert root.getAttribute("xmlns") == "http://www.w3.org/2000/svg"
    assert picture.count("http") == 1
    assert "prefers-color-scheme: dark" in picture
    assert not root.getElementsByTagName("script")
    assert "tasks in the pool" in picture
    assert 'class="card"' in picture
    assert xml.dom.minidom.parseString(render_picture(made_up.hostile()).encode())


def test_only_light_imports() -> None:
    code = "import sys, coevo_gym.report.render; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert not {"torch", "matplotlib", "pandas", "sentence_transformers"} & set(done.stdout.split())


def test_evolution_is_a_table_and_arms_are_crossed() -> None:
    page = render_report(made_up.full())
    assert "66 by CoEvolve alone, 21 by static D_0 alone, 93 by neither" in page
    arms = '<th scope="col">blind growth</th><th scope="col">CoEvolve</th>'
    table = page.split(arms)[1].split("</table>")[0]
    assert '<th scope="row">signals</th><td>0</td><td>340</td>' in table
    assert '<th scope="row">tasks a signal</th><td>0.00</td><td>0.50</td>' in table
    assert '<th scope="row">SR@5 of pool</th><td>0.42</td><td>–</td>' in table


def test_what_arms_practised_on_is_a_table() -> None:
    page = render_report(made_up.full())
    table = page.partition('<table class="measures">')[2].partition("</table>")[0]
    assert "<th>practice</th>" in table
    lines = {
        "mixed groups": ("40.0\u202f%", "61.0\u202f%"),
        "steps, all failed": ("25.0\u202f%", "41.0\u202f%"),
        "reserve": ("12", "151"),
        "tags covered": ("18", "–"),
    }
    for name, (static, evolving) in lines.items():
        assert f'<th scope="row">{name}</th><td>{static}</td><td>{evolving}</td>' in table
    uncounted = render_report(replace(made_up.full(), practice=()))
    assert "<th>practice</th>" not in uncounted
    assert "What the arms practised on" not in uncounted


def test_what_models_were_asked_has_a_table_with_its_sum() -> None:
    page = render_report(made_up.full())
    table = page.partition('<table class="measures asked">')[2].partition("</table>")[0]
    assert "CoEvolve: summary" in table
    assert ">5,618<" in table  # requests in all
    assert "7,082,055" in page.partition("</table>")[0]
    nobody = render_report(replace(made_up.full(), usage=()))
    assert "what models were asked" not in nobody
    assert "<th>tokens</th>" not in nobody


def test_a_table_of_measures_has_few_columns() -> None:
    arms = tuple(EvolutionRow(f"arm {i}", i, i, i, i) for i in range(9))
    page = render_report(replace(made_up.full(), practice=(), evolution=arms))
    tables = [rest.partition("</table>")[0] for rest in page.split('<table class="measures">')[1:]]
    assert [table.count('scope="col"') for table in tables] == [4, 4, 1]
    assert all(f'<th scope="col">arm {i}</th>' in page for i in range(9))
