"""The viewer as people use it: a real run, the real program, a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="install the extra `[dev]`")
pytest.importorskip("uvicorn", reason="install the extra `[serve]`")

from playwright.sync_api import Browser, Locator, expect

from coevo_gym.view.export.write import DataFile, export_pages
from coevo_gym.view.library import Library
from coevo_gym.view.safe import Censor
from tests.view import browsing
from tests.view.browsing import Visit
from tests.view.exports import read_data, replace_data, restore_texts
from tests.view.made_up import ATTACK
from tests.view.sample import EVAL, RUN
from tests.view.serving import serve_viewer

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def address(sample_folder: Path) -> Iterator[str]:
    """Where the viewer of the small run and its evaluation answers."""
    with serve_viewer(
        [str(sample_folder / "runs" / RUN), str(sample_folder / "evals" / EVAL)]
    ) as where:
        yield where


class Stranger:
    """Somebody who begins at the list of runs, and whose clicks are counted."""

    def __init__(self, visit: Visit, address: str) -> None:
        self.visit, self.page, self.clicks = visit, visit.page, 0
        visit.go("#/", address)

    def click(self, what: Locator) -> None:
        what.first.click()
        self.clicks += 1
        self.visit.wait_until_loaded()

    def link(self, name: str | re.Pattern[str]) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=isinstance(name, str)))

    def row(self, n: int = 0) -> None:
        self.click(self.page.locator("[data-row]").nth(n))


@pytest.fixture
def stranger(chromium: Browser, address: str) -> Iterator[Stranger]:
    with browsing.visit(chromium) as visit:
        yield Stranger(visit, address)
        assert not visit.complaints


def test_a_step_of_a_failed_episode_is_five_clicks_away(stranger: Stranger) -> None:
    stranger.link(RUN)
    stranger.link("Trajectories")
    stranger.page.get_by_label("Outcome").select_option("false")
    stranger.clicks += 1
    stranger.visit.wait_until_loaded()
    stranger.row()
    stranger.click(stranger.page.locator(".outline a, .step h3 a").nth(2))
    assert stranger.clicks == 5
    step = stranger.page.locator("#step-3")
    expect(step).to_be_in_viewport()
    expect(step.locator(".shown")).not_to_be_empty()
    expect(step.locator(".action")).not_to_be_empty()
    expect(stranger.page.locator("#verdict")).to_contain_text("failed")


def test_tasks_that_got_worse_after_a_round_are_three_clicks_away(stranger: Stranger) -> None:
    stranger.link(RUN)
    stranger.link("coevolve")
    stranger.link(re.compile("^round-0"))
    assert stranger.clicks == 3
    changed = stranger.page.locator("#changed")
    either = "tasks? that got worse|There is no evaluation after this round"
    expect(changed).to_contain_text(re.compile(either))


def test_the_walks_behind_a_new_task_are_three_clicks_away(stranger: Stranger) -> None:
    stranger.link(RUN)
    stranger.link("Tasks")
    stranger.row()
    assert stranger.clicks == 3
    main = stranger.page.locator("main")
    expect(main).to_contain_text("Starting point")
    expect(main.locator("#walks li")).not_to_have_count(0)
    expect(main.locator(".gate-list .good")).not_to_have_count(0)
    expect(main.locator(".chart-of-lineage svg")).to_be_visible()


def test_the_gate_that_rejects_most_drafts_is_two_clicks_away(stranger: Stranger) -> None:
    stranger.link(RUN)
    stranger.link("Drafts and gates")
    assert stranger.clicks == 2
    expect(stranger.page.locator("main")).to_contain_text("rejects the most")
    expect(stranger.page.locator(".reason")).not_to_have_count(0)


def test_the_episodes_of_two_arms_on_one_task_are_three_clicks_away(stranger: Stranger) -> None:
    stranger.link(RUN)
    stranger.link("Two arms")
    stranger.row()
    assert stranger.clicks == 3
    columns = stranger.page.locator(".side-column")
    expect(columns).to_have_count(2)
    expect(columns.first).to_contain_text("static")
    expect(columns.last).to_contain_text("coevolve")
    stranger.link("Compare two episodes")
    expect(stranger.page.locator(".side-row")).not_to_have_count(0)


def test_the_comparison_of_two_arms_shows_intervals_and_can_be_swapped(stranger: Stranger) -> None:
    main = stranger.page.locator("main")
    stranger.link(RUN)
    expect(main.locator(".headline")).to_contain_text("one seed; repeats can differ by more")
    stranger.link("Compare arms")
    assert stranger.clicks == 2
    expect(main.locator(".headline")).to_contain_text("takes several seeds")
    expect(main.locator(".chart-of-intervals svg")).to_be_visible()
    cells = [int(text) for text in main.locator(".cross b").all_inner_texts()]
    assert len(cells) == 4
    expect(main.locator(".figures")).to_contain_text(f"{sum(cells)}")
    stranger.click(stranger.page.get_by_role("button", name="Swap"))
    both, worse, better, neither = cells
    expect(main.locator(".cross b")).to_have_text([str(n) for n in (both, better, worse, neither)])


def test_an_episode_is_reached_from_an_evaluation_by_task_type(stranger: Stranger) -> None:
    stranger.link(EVAL)
    name = stranger.page.locator(".chart-of-intervals svg a text").first
    type = str(name.text_content())
    stranger.click(name)
    chosen = stranger.page.locator("select[name=type]")
    expect(chosen).to_have_value(re.compile(f":{re.escape(type)}$"))
    stranger.row()
    assert stranger.clicks == 3
    expect(stranger.page.locator("#verdict")).to_contain_text(re.compile("solved|failed"))


def test_a_search_result_links_to_its_page(stranger: Stranger) -> None:
    page = stranger.page
    page.keyboard.press("/")
    page.keyboard.type("click")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Search: click")
    stranger.visit.wait_until_loaded()
    stranger.row()
    expect(page.locator("h1")).not_to_contain_text("Search")


def test_the_page_shows_whether_the_server_is_connected(chromium: Browser, address: str) -> None:
    with browsing.visit(chromium) as visit:
        visit.go("#/", address)
        expect(visit.page.locator(".live.on")).to_have_text("Connected")
        visit.page.context.set_offline(True)
        visit.page.evaluate("place => { window.location.hash = place }", f"#/runs/{RUN}/drafts")
        expect(visit.page.get_by_role("alert")).to_contain_text("coevo view")


@pytest.fixture(scope="module")
def exported(sample_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run and its evaluation as one file."""
    names = [str(sample_folder / "runs" / RUN), str(sample_folder / "evals" / EVAL)]
    page = tmp_path_factory.mktemp("exported") / "page.html"
    return export_pages(Library(names), page).page


def crawl(visit: Visit, address: str, most: int) -> set[str]:
    """Whatever can be reached from the list of runs; of places that are alike, one."""
    visit.go("#/", address)
    known, left = {"#/"}, ["#/"]
    while left and len(known) < most:
        place = left.pop()
        visit.jump(place)
        assert not visit.page.locator("main .problem").count(), place
        assert "not found" not in visit.page.locator("h1").inner_text(), place
        assert visit.overflow_px() == 0, place
        assert not visit.complaints, place
        hrefs = visit.page.eval_on_selector_all(
            "a[href^='#/']", "all => all.map(a => a.getAttribute('href'))"
        )
        for href in hrefs:
            if visit.page.url.startswith("file:") and re.search("/(episodes|evaluated)/", href):
                continue  # left out of an export, unless they are asked for
            alike = re.sub(r"[0-9a-f]{8,}|\d+", "0", href)
            if alike not in known:
                known.add(alike)
                left.append(href)
    return known


def test_an_exported_file_opens_without_a_server(chromium: Browser, exported: Path) -> None:
    with browsing.visit(chromium) as visit:
        asked: list[str] = []
        visit.page.on("request", lambda request: asked.append(request.url))
        visit.go(f"#/runs/{RUN}/trajectories?success=false", exported.as_uri())
        expect(visit.page.locator(".live")).to_have_text("Exported file")
        visit.page.locator("[data-row]").first.click()
        expect(visit.page.locator("#step-1")).to_be_visible()
        visit.page.go_back()
        visit.page.get_by_label("Words in the task").fill("no such words anywhere")
        expect(visit.page.locator(".empty")).to_be_visible()
        assert not visit.complaints
        assert {url.split(":")[0] for url in asked} <= {"file", "data"}


def test_hostile_text_in_an_exported_file_is_not_executed(
    chromium: Browser, exported: Path, tmp_path: Path
) -> None:
    data, part = read_data(exported), DataFile(Censor())
    hostile = [f"{one} {ATTACK} </script><script>window.hit=1</script>" for one in data["texts"]]
    for path, value in data["answers"].items():
        part.add(path, restore_texts(value, hostile))
    text = part.finish(lists=data["lists"], left_out=data["left_out"])
    page = tmp_path / "page.html"
    page.write_text(replace_data(exported.read_text(), text))
    with browsing.visit(chromium) as visit:
        for place in (f"#/runs/{RUN}/tasks", f"#/runs/{RUN}/trajectories", f"#/runs/{RUN}/drafts"):
            visit.go(place, page.as_uri())
            visit.page.locator("[data-row]").first.click()
            visit.wait_until_loaded()
            assert "window.hit" in visit.page.locator("main").inner_text()
            assert visit.page.evaluate("window.hit") is None
            assert not visit.page.locator("main script, main img").count()
        assert not visit.complaints


@pytest.mark.slow
def test_every_link_of_an_exported_file_opens_a_page(chromium: Browser, exported: Path) -> None:
    with browsing.visit(chromium) as visit:
        assert len(crawl(visit, exported.as_uri(), 60)) > 30


LOOKS: dict[str, dict[str, object]] = {
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_every_link_of_the_viewer_opens_a_page(chromium: Browser, address: str, look: str) -> None:
    with browsing.visit(chromium, **LOOKS[look]) as visit:
        assert len(crawl(visit, address, 80)) > 30
