"""The pages of evaluations and comparisons in a real browser, with answers that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright.sync_api", reason="install the extra `[dev]`")

from playwright.sync_api import Browser, expect

from tests.view import browsing
from tests.view.browsing import Visit
from tests.view.made_up import add_attacks
from tests.view.made_up_evals import ANSWERS, PLACES

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def shared(chromium: Browser) -> Iterator[Visit]:
    with browsing.visit(chromium, ANSWERS) as visit:
        visit.go("#/evals")
        yield visit


@contextmanager
def asking(visit: Visit, a: str, b: str) -> Iterator[None]:
    """What is done in it asks for this comparison."""
    wanted = f"/api/compare?{urlencode({'a': a, 'b': b})}"
    with visit.page.expect_request(lambda request: request.url.endswith(wanted)):
        yield
    visit.wait_until_loaded()


@pytest.mark.parametrize("name", PLACES)
def test_each_page_opens_without_errors_and_fits_a_narrow_window(shared: Visit, name: str) -> None:
    shared.jump(PLACES[name])
    shared.assert_sound()


def test_the_name_of_a_model_without_a_run_is_shown_once(shared: Visit) -> None:
    shared.jump(PLACES["evaluations"])
    rows = shared.page.get_by_role("table", name="Evaluations", exact=True)
    assert rows.inner_text().count("openai:good") == 1
    assert "coevolve, tiny" in rows.inner_text()


def test_a_click_on_a_type_filters_the_episodes(shared: Visit) -> None:
    shared.jump(PLACES["evaluation"])
    beauty = shared.page.locator(".chart-of-intervals svg a", has_text="beauty")
    wanted = "/api/evals/after/episodes?type=category%3Abeauty"
    with shared.page.expect_request(lambda request: request.url.endswith(wanted)):
        beauty.click(force=True)
    assert shared.page.url.endswith("#/evals/after?type=category%3Abeauty")
    expect(shared.page.locator("select[name=type]")).to_have_value("category:beauty")


def test_a_click_on_a_kind_of_failure_filters_the_episodes(shared: Visit) -> None:
    shared.jump(PLACES["evaluation"])
    rows = shared.page.get_by_role("table", name="Episodes")
    assert "not_reached at turn 2" in rows.inner_text()
    kind = shared.page.locator("svg a", has_text="not_reached")
    wanted = "/api/evals/after/episodes?failure=not_reached"
    with shared.page.expect_request(lambda request: request.url.endswith(wanted)):
        kind.click(force=True)
    expect(shared.page.locator("select[name=failure]")).to_have_value("not_reached")


def test_the_tasks_of_an_arm_can_be_filtered_by_their_kind_of_failure(shared: Visit) -> None:
    shared.jump(PLACES["evaluation of an arm"])
    chosen = shared.page.get_by_label("Failure")
    assert chosen.locator("option").all_inner_texts() == [
        "any",
        "argument_mismatch",
        "missing_tool_call",
    ]
    chosen.select_option("missing_tool_call")
    rows = shared.page.get_by_role("table", name="Held-out tasks").locator("tbody tr")
    expect(rows).to_have_count(10)
    assert all("missing_tool_call" in text for text in rows.all_inner_texts())


def test_each_episode_of_an_evaluation_is_a_link(shared: Visit) -> None:
    shared.jump(PLACES["evaluation"])
    rows = shared.page.get_by_role("table", name="Episodes").locator("a[data-row]")
    assert rows.count() == 48
    assert rows.first.get_attribute("href") == f"#/evals/after/episodes/{'0' * 64}.0"


def test_an_evaluation_can_be_compared_with_others_on_the_same_tasks(shared: Visit) -> None:
    shared.jump(PLACES["evaluation"])
    others = shared.page.get_by_label("Compare with")
    assert others.locator("option").all_inner_texts() == ["choose…", "before", "going"]
    with asking(shared, "evals/after", "evals/before"):
        others.select_option("evals/before")
    expect(shared.page.locator("main h1")).to_have_text("Comparison")


def test_a_comparison_shows_the_difference_its_interval_and_the_tasks(shared: Visit) -> None:
    shared.jump(PLACES["comparison"])
    page = shared.page.locator("main")
    text = page.inner_text()
    assert "+15.0 points" in text
    assert "+2.0 to +28.0" in text
    assert "On tasks like these, B does better than A." in text
    assert "max_steps: 15 in A, 20 in B" in text
    cells = page.locator(".cross td b").all_inner_texts()
    assert cells == ["20", "4", "13", "23"]
    won = page.get_by_role("table", name="Only B solves")
    assert won.locator("tbody tr").count() == 13
    first = won.locator("tbody tr").first
    assert [link.get_attribute("href") for link in first.locator("a").all()] == [
        "#/side?a=evals%2Fbefore%2Fepisodes%2Fwon-0.0&b=evals%2Fafter%2Fepisodes%2Fwon-0.0",
        "#/evals/before/episodes/won-0.0",
        "#/evals/after/episodes/won-0.0",
    ]


def test_the_sides_of_a_comparison_can_be_swapped_and_chosen(shared: Visit) -> None:
    shared.jump(PLACES["comparison"])
    with asking(shared, "evals/after", "evals/before"):
        shared.page.get_by_role("button", name="Swap").click()
    with asking(shared, "evals/after", "runs/shop-1/static"):
        shared.page.locator("select[name=b]").select_option("runs/shop-1/static")


def test_the_tasks_of_an_arm_can_be_filtered_to_those_that_got_worse(shared: Visit) -> None:
    shared.jump(PLACES["evaluation of an arm"])
    shared.page.locator("select[name=change]").select_option("worse")
    rows = shared.page.get_by_role("table", name="Held-out tasks").locator("tbody tr")
    expect(rows).to_have_count(15)
    for row in rows.all_inner_texts():
        assert "failed" in row
        assert "solved" in row


HIDDEN = r"/[\u0000-\u0008\u001b\u202a-\u202e\u2066-\u2069\u200b\ufeff]|\udb40/"
"""Characters of the attack that nobody would see."""


@pytest.fixture(scope="module")
def attacked(chromium: Browser) -> Iterator[Visit]:
    """A tab in which every free text attacks."""
    answers = {path: add_attacks(answer) for path, answer in ANSWERS.items()}
    with browsing.visit(chromium, answers) as visit:
        visit.go("#/evals")
        yield visit


@pytest.mark.parametrize("name", PLACES)
def test_hostile_text_is_shown_and_not_executed(attacked: Visit, name: str) -> None:
    attacked.jump(PLACES[name])
    main = attacked.page.locator("main")
    assert "This page failed" not in main.inner_text()
    assert not main.locator("script, img, iframe, style, [onload]").count()
    assert attacked.page.evaluate("window.hit") is None
    assert not attacked.page.evaluate(f"{HIDDEN}.test(document.body.textContent + document.title)")
    titles = "Array.from(document.querySelectorAll('[title], [aria-label], [data-label]'))"
    expression = "node.title + node.getAttribute('aria-label') + node.dataset.label"
    assert not attacked.page.evaluate(f"{titles}.some(node => {HIDDEN}.test({expression}))")
    assert not attacked.complaints
