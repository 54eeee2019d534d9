"""A run's report: the viewer's pages in one file, with JavaScript and without."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import StoreError
from coevo_gym.store.folder import RunFolder, read_json
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.export import write
from coevo_gym.view.export.gathering import MAX_TASKS, render_run_page
from coevo_gym.view.export.write import write_report
from coevo_gym.view.library import Library
from tests.view.exports import read_data, replace_data, restore_texts
from tests.view.sample import RUN

AT = f"runs/{RUN}"
FOLDER = RunFolder(Path(AT))


class Plain(HTMLParser):
    """The text of a page, without its scripts and styles; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"[ \n]+", " ", " ".join(self.texts))


@pytest.fixture(scope="module")
def page(sample_folder: Path, coevo_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_HOME", str(coevo_home))
        patch.chdir(sample_folder)
        assert write_report(FOLDER, target) == target
    return target


def list_tasks() -> list[dict[str, Any]]:
    """All tasks of the run, as the viewer lists them; how many it found depends on its training."""
    rows: list[dict[str, Any]] = json.loads(
        json_response(RunCollection(Library([RUN])), f"{AT}/tasks", "per_page=500")
    )["rows"]
    return rows


def test_a_report_contains_the_viewers_answers_without_episodes_and_walks(
    page: Path, beside: Path
) -> None:
    data, collection = read_data(page), RunCollection(Library([RUN]))
    paths = list(data["answers"])
    arm = f"{AT}/arms/coevolve"
    assert {AT, f"{AT}/measures", f"{AT}/task-set", f"{AT}/tasks", f"{AT}/drafts", f"{arm}/steps",
            f"{arm}/notes", f"{arm}/rounds", f"{arm}/rounds/round-1", f"{arm}/groups",
            f"compare?a={AT}&b="} <= set(paths)  # fmt: skip
    rows = list_tasks()
    assert {f"{AT}/tasks/{row['id']}" for row in rows} <= set(paths)
    assert sum(path.startswith(f"{AT}/tasks/") for path in paths) == len(rows)
    assert not [path for path in paths if re.search(r"/trajectories|/evaluations|groups/", path)]
    assert "search" not in paths
    for path in (AT, f"{AT}/measures", f"{AT}/task-set", f"{arm}/steps", f"{arm}/rounds"):
        expected = json.loads(json_response(collection, path))
        assert restore_texts(data["answers"][path], data["texts"]) == expected, path
    round_ = restore_texts(data["answers"][f"{arm}/rounds/round-1"], data["texts"])
    assert all(one["evidence"] == one["contrast"] == [] for one in round_["contexts"])
    assert any(one["summary"] for one in round_["contexts"])
    stories = [
        restore_texts(data["answers"][path], data["texts"])["story"]
        for path in paths
        if path.startswith(f"{AT}/tasks/")
    ]
    assert {tuple(story["walks"]) for story in stories if story} == {()}


def test_a_report_is_small_and_needs_no_other_file(page: Path) -> None:
    text = replace_data(page.read_text(), "")
    assert page.stat().st_size < 1_500_000
    assert not re.search(r"<script src=|<link rel=.stylesheet", text)
    assert "default-src 'none'" in text
    assert len(re.findall("<script>", text)) == text.count("'sha256-") - text.count("<style>")


def test_the_page_without_javascript_has_a_table_a_curve_and_the_new_tasks(
    page: Path, beside: Path
) -> None:
    read = Plain(replace_data(page.read_text(), ""))
    for row in read_json(FOLDER.summary)["table"]:
        assert f"{row['name']} {100 * row['success']:.1f}\u202f%" in read.text
        assert f"{100 * row['low']:.1f}–{100 * row['high']:.1f}\u202f%" in read.text
    assert {"table", "svg", "ol"} <= set(read.tags)
    instructions = [row["instruction"] for row in list_tasks() if row["step"]]
    assert instructions
    assert all(instruction in read.text for instruction in instructions)
    assert f"{len(instructions)} tasks were found during training." in read.text


def test_a_report_is_reproducible_and_does_not_change_the_run(
    page: Path, beside: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in FOLDER.path.rglob("*")}
    code = (
        "import sys; from pathlib import Path; from coevo_gym.store.folder import RunFolder\n"
        "sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "from coevo_gym.view.export.write import write_report\n"
        f"write_report(RunFolder(Path({AT!r})), Path(sys.argv[1]))"
    )
    again = tmp_path / "again.html"
    subprocess.run([sys.executable, "-c", code, str(again)], check=True, timeout=600)
    assert again.read_bytes() == page.read_bytes()
    assert {path: path.stat().st_mtime_ns for path in FOLDER.path.rglob("*")} == before


def test_a_report_at_the_size_limit_omits_task_pages_and_then_lists(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "REPORT_BYTES", 0)
    data = read_data(write_report(FOLDER, tmp_path / "short.html"))
    assert not [path for path in data["answers"] if path.startswith(f"{AT}/tasks/")]
    left_out = f"pages for the latest 0 of {len(list_tasks())} tasks of small"
    assert left_out in " ".join(data["left_out"])
    monkeypatch.setattr(write, "MAX_BYTES", 0)
    page = write_report(FOLDER, tmp_path / "none.html")
    data = read_data(page)
    assert set(data["answers"]) == {"about"}
    assert f"{AT}/tasks is too large for this file." in data["left_out"]
    assert "New tasks" in page.read_text()


def copied(tmp_path: Path) -> RunFolder:
    shutil.copytree(AT, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    return RunFolder(tmp_path / "copy")


@pytest.mark.parametrize("missing", ["run.db", "metrics.jsonl", "manifest.json"])
def test_the_error_for_a_missing_file_of_the_run_names_it(
    beside: Path, tmp_path: Path, missing: str
) -> None:
    folder = copied(tmp_path)
    (folder.path / missing).unlink()
    with pytest.raises(StoreError, match=rf"{missing}(.*is missing|: No such file)"):
        write_report(folder)
    assert not folder.report.is_file()


def test_a_damaged_run_is_an_error(beside: Path, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    folder.summary.write_text("[]")
    with pytest.raises(StoreError, match="contains no table"):
        write_report(folder)


ATTACK = "<script>alert(1)</script> {{ 7 * 7 }} & &amp; \u202e\x1b[31m"


def test_hostile_text_is_shown_as_plain_text(beside: Path, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    with closing(sqlite3.connect(folder.database)) as database, database:
        database.execute("UPDATE tasks SET instruction = ?", (ATTACK,))
    html = render_run_page(RunCollection(Library([folder])).runs()[0])
    read = Plain(html)
    assert "<script>alert(1)</script> {{ 7 * 7 }} & &amp; [202E][ESC][31m" in read.text
    assert not re.search("[\x1b\u202e]", html)
    assert "script" not in read.tags


def test_only_the_latest_of_many_new_tasks_are_listed(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_TASKS >= 100
    monkeypatch.setattr("coevo_gym.view.export.gathering.MAX_TASKS", 5)
    html = render_run_page(RunCollection(Library([RUN])).runs()[0])
    assert html.count("<li><bdi>") == 5
    assert "the latest 5 are listed" in html


def test_a_run_without_rounds_or_evaluations_has_a_report(beside: Path, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    folder.metrics.write_text("")
    folder.summary.unlink()
    text = write_report(folder).read_text()
    assert "This run has no evaluations on held-out tasks." in text


# ---- in a browser -------------------------------------------------------------------------------

browsing: Any = pytest.importorskip("tests.view.browsing", reason="install the extra `[dev]`")
pytestmark = pytest.mark.xdist_group("browser")
LONG = {"width": 1200, "height": 700}


@pytest.fixture(scope="module")
def opened(page: Path, chromium: Any) -> Iterator[Any]:
    with browsing.visit(chromium, viewport=LONG) as visit:
        visit.go("", page.as_uri())
        yield visit


@pytest.mark.parametrize(
    "place",
    [AT, f"{AT}/tasks", f"{AT}/drafts", f"{AT}/arms", f"{AT}/arms/coevolve", "terms?term=sr",
     f"{AT}/arms/coevolve/rounds/round-1", f"{AT}/arms/coevolve/groups", ""],
)  # fmt: skip
def test_each_page_of_a_report_opens_and_links_to_no_omitted_page(opened: Any, place: str) -> None:
    opened.jump(f"#/{place}")
    opened.assert_sound()
    hrefs = "all => all.map(a => a.getAttribute('href'))"
    for href in set(opened.page.eval_on_selector_all("a[href^='#/']", hrefs)):
        assert not re.search("/trajectories|/evaluations|groups/|/search", href), href


def test_a_report_opens_with_the_run_and_has_no_search(opened: Any, page: Path) -> None:
    opened.go("", page.as_uri())
    assert opened.page.locator("h1").inner_text() == RUN
    assert opened.page.title().startswith(RUN)
    assert not opened.page.locator("input[type=search]").count()
    tabs = opened.page.locator(".tabs a").all_inner_texts()
    assert tabs == ["Overview", "Tasks", "Drafts and gates", "Two arms"]
    opened.page.locator(".tabs a", has_text="Tasks").click()
    opened.wait_until_loaded()
    opened.page.locator("table.list tbody a[data-row]").first.click()
    opened.wait_until_loaded()
    assert "This file does not contain walks." in opened.page.locator("main").inner_text()


def test_the_table_of_contents_stays_visible_and_links_to_its_sections(opened: Any) -> None:
    opened.jump(f"#/{AT}")
    bar = opened.page.locator("nav.contents")
    for link in bar.locator("a").all():
        name = link.get_attribute("href")
        assert opened.page.locator(f"section{name}").count() == 1, name
    for words, id in (("Evolution", "evolution"), ("Training", "practice")):
        bar.get_by_text(words).click()
        where = opened.page.locator(f"section#{id}").bounding_box()
        stays = bar.bounding_box()
        assert 0 <= stays["y"] < 120
        assert stays["y"] + stays["height"] <= where["y"] + 1 < LONG["height"]


def test_a_term_in_a_table_links_to_its_definition(opened: Any) -> None:
    opened.jump(f"#/{AT}")
    terms = opened.page.locator("section#practice a.term, section#evolution a.term")
    assert terms.count() == 21
    for name in terms.evaluate_all("all => all.map(a => a.getAttribute('href'))"):
        opened.jump(name)
        assert opened.page.locator(".terms .here").is_visible(), name
    opened.jump(f"#/{AT}/tasks")
    opened.page.get_by_role("link", name="SR@5").click()
    opened.wait_until_loaded()
    assert "five most similar tasks" in opened.page.locator(".terms .here").inner_text()


def test_the_signal_chart_shows_the_stored_counts_by_arm(opened: Any, beside: Path) -> None:
    arms = json.loads(json_response(RunCollection(Library([RUN])), AT))["arms"]
    opened.jump(f"#/{AT}")
    chart = opened.page.locator("figure.chart", has_text="Signals by arm")
    chart.locator("summary").click()
    chart.locator("tbody td").last.wait_for()
    head = chart.locator("thead th").all_inner_texts()
    rows = [row.locator("th, td").all_inner_texts() for row in chart.locator("tbody tr").all()]
    counts = {(head[i], kind): int(n) for kind, *of in rows for i, n in enumerate(of, start=1)}
    stored = {(arm["name"], kind): n for arm in arms for kind, n in arm["signals"].items()}
    assert {place: n for place, n in counts.items() if n} == stored


def test_a_report_can_be_read_without_scripts(page: Path, beside: Path, chromium: Any) -> None:
    with browsing.visit(chromium, java_script_enabled=False) as visit:
        visit.page.goto(page.as_uri())
        main = visit.page.locator("main")
        assert main.locator("h1").inner_text() == RUN
        assert main.locator("table tbody tr").count() == 4
        assert main.locator("svg path").count() >= 4
        assert main.locator("svg").bounding_box()["height"] > 200
        assert main.locator("ol > li").count() == sum(bool(row["step"]) for row in list_tasks())
        assert "With JavaScript" in main.inner_text()
        assert not visit.complaints


def test_a_report_can_be_printed(opened: Any) -> None:
    opened.jump(f"#/{AT}")
    opened.page.emulate_media(media="print")
    try:
        for hidden in (".top", ".tabs", "nav.contents"):
            assert not opened.page.locator(hidden).is_visible()
        assert opened.page.locator("figure.chart svg.coevo-plot").first.is_visible()
        assert opened.overflow_px() == 0
    finally:
        opened.page.emulate_media(media="screen")
