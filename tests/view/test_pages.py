"""The viewer's pages in a real browser, with answers that are made up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

pytest.importorskip("playwright.sync_api", reason="install the extra `[dev]`")

from playwright.sync_api import Browser, Page, expect

from coevo_gym.view.api import About
from coevo_gym.view.model.drafts import DraftDetail, DraftPage
from coevo_gym.view.model.eval_tables import EvalTableDetail
from coevo_gym.view.model.evals import EvalList, EvaluationDetail
from coevo_gym.view.model.measures import RunMeasures, TaskSet
from coevo_gym.view.model.notes import ArmNotes
from coevo_gym.view.model.rounds import RoundDetail, RoundList
from coevo_gym.view.model.runs import RunDetail, RunList
from coevo_gym.view.model.search import SearchResult
from coevo_gym.view.model.steps import GroupDetail, GroupPage, StepTable
from coevo_gym.view.model.tables import LedgerView, TableCurves, TableDetail, TableList
from coevo_gym.view.model.tasks import TaskDetail, TaskPage
from coevo_gym.view.model.trajectories import TrajectoryDetail
from coevo_gym.view.model.trajectory_list import TrajectoryPage
from coevo_gym.view.rows import Shape
from tests.view import browsing
from tests.view.browsing import Visit
from tests.view.made_up import ADVICE, ANSWERS, ASKED, PLACES, RUN, STEP_LABELS, TASK, add_attacks

pytestmark = pytest.mark.xdist_group("browser")

TRAJECTORY = PLACES["trajectory"]
SHAPES: dict[str, type[Shape]] = {
    "about": About,
    "runs": RunList,
    "runs/[^/]+": RunDetail,
    ".+/measures": RunMeasures,
    ".+/task-set": TaskSet,
    ".+/steps": StepTable,
    ".+/groups": GroupPage,
    ".+/groups/[^/]+": GroupDetail,
    ".+/notes": ArmNotes,
    ".+/rounds": RoundList,
    ".+/rounds/[^/]+": RoundDetail,
    ".+/trajectories": TrajectoryPage,
    ".+/trajectories/[^/]+": TrajectoryDetail,
    ".+/tasks": TaskPage,
    ".+/tasks/[^/]+": TaskDetail,
    ".+/drafts": DraftPage,
    ".+/drafts/[^/]+": DraftDetail,
    ".+/evaluations/.+": EvaluationDetail,
    "evals": EvalList,
    "tables": TableList,
    "tables/[^/]+": TableDetail,
    "tables/.+/curves": TableCurves,
    "eval-tables/.+": EvalTableDetail,
    "ledgers/.+": LedgerView,
    "search": SearchResult,
}


@pytest.mark.parametrize("path", ANSWERS)
def test_the_made_up_answers_match_the_response_models(path: str) -> None:
    shape = next(shape for pattern, shape in SHAPES.items() if re.fullmatch(pattern, path))
    shape.model_validate(ANSWERS[path])


@pytest.fixture(scope="module")
def shared(chromium: Browser) -> Iterator[Visit]:
    """A tab that tests share which leave nothing behind."""
    with browsing.visit(chromium, ANSWERS) as visit:
        visit.go("#/")
        yield visit


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    with browsing.visit(chromium, ANSWERS) as visit:
        yield visit


@pytest.mark.parametrize("name", PLACES)
def test_each_page_opens_without_errors_and_fits_a_narrow_window(shared: Visit, name: str) -> None:
    shared.jump(PLACES[name])
    shared.assert_sound()


@pytest.mark.parametrize("share", [0.7525, 0.7535, 0.7575, 0.0005, 0.0003, 0.29304, 1, 0])
def test_numbers_are_rounded_as_in_reports(shared: Visit, share: float) -> None:
    percentage = shared.page.evaluate("share => coevo.percent(share)", share)
    assert percentage == f"{100 * share:.1f}\u202f%"
    for digits in (0, 1, 3):
        decimal = shared.page.evaluate("([x, n]) => coevo.decimal(x, n)", [5000 * share, digits])
        assert decimal == f"{5000 * share:.{digits}f}"


def test_every_link_of_every_page_leads_to_a_page(shared: Visit) -> None:
    hrefs: set[str] = set()
    for place in PLACES.values():
        shared.jump(place)
        hrefs |= set(
            shared.page.eval_on_selector_all(
                "a[href]", "all => all.map(a => a.getAttribute('href'))"
            )
        )
    assert {href[0] for href in hrefs} == {"#"}
    alike = {re.sub(r"\d+", "0", href.split("?")[0]): href for href in hrefs if href[1:2] == "/"}
    assert len(alike) > 20
    for href in alike.values():
        if href != "#/":
            shared.jump(href)
            expect(shared.page.locator("main h1")).not_to_have_text("Page not found")


@pytest.fixture(scope="module")
def attacked(chromium: Browser) -> Iterator[Visit]:
    """A tab in which whatever somebody could have written is an attack."""
    answers = {path: add_attacks(answer) for path, answer in ANSWERS.items()}
    with browsing.visit(chromium, answers) as visit:
        visit.go("#/")
        yield visit


HIDDEN = r"/[\u0000-\u0008\u001b\u202a-\u202e\u2066-\u2069\u200b\ufeff]|\udb40/"
"""Characters of the attack that nobody would see."""


@pytest.mark.parametrize("name", PLACES)
def test_hostile_text_is_shown_and_not_executed(attacked: Visit, name: str) -> None:
    attacked.jump(PLACES[name])
    page = attacked.page
    assert "This page failed" not in page.locator("main").inner_text()
    assert page.evaluate("window.hit") is None
    assert not page.locator("main script, main img, main iframe, main [onload]").count()
    text = page.evaluate("document.body.textContent")
    assert "<script>" in text or name == "terms"  # that page quotes nothing
    assert not page.evaluate(f"{HIDDEN}.test(document.body.textContent + document.title)")
    titles = "Array.from(document.querySelectorAll('[title], [aria-label], [data-label]'))"
    expression = "node.title + node.getAttribute('aria-label') + node.dataset.label"
    assert not page.evaluate(f"{titles}.some(node => {HIDDEN}.test({expression}))")
    assert not attacked.complaints


def test_invisible_characters_are_shown_by_name(attacked: Visit) -> None:
    attacked.jump(TRAJECTORY)
    marks = set(attacked.page.locator(".hidden-char").all_inner_texts())
    assert marks >= {"RLO", "PDF", "LRI", "ZWSP", "NUL", "ESC", "BEL", "BOM", "D800", "E0041"}
    assert attacked.page.locator("bdi").count() > 20  # no text turns what is beside it around


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("run", f"runs/{RUN}/arms/coevolve/steps"),
        ("arm", f"runs/{RUN}/arms/coevolve/groups"),
        ("round", f"runs/{RUN}/arms/coevolve/groups"),
        ("arms", f"runs/{RUN}/tasks"),
    ],
)
def test_a_part_of_a_page_that_cannot_be_loaded_shows_the_error_and_a_retry(
    chromium: Browser, name: str, path: str
) -> None:
    answers = {place: answer for place, answer in ANSWERS.items() if place != path}
    refused = {path: {"error": "NotFound", "message": "The index is gone."}}
    with browsing.visit(chromium, answers, refused=refused) as visit:
        visit.go(PLACES[name])
        expect(visit.page.get_by_role("alert")).to_contain_text("The index is gone.")
        asked = len(visit.asked)
        with visit.page.expect_response(lambda answer: answer.status == 404):
            visit.page.get_by_role("button", name="Try again").click()
        visit.wait_until_loaded()
        expect(visit.page.get_by_role("alert")).to_contain_text("The index is gone.")
        assert path in [place for place, _ in visit.asked[asked:]]
        assert visit.page.locator("a.top-run").is_visible()  # the run itself is not lost


def test_a_very_long_text_is_collapsed(chromium: Browser) -> None:
    path = PLACES["trajectory"].removeprefix("#/")
    long = "\u202e<b>word</b> " * 80_000
    episode: dict[str, Any] = json.loads(json.dumps(ANSWERS[path]))
    plain = {"kind": "text", "format": "plain", "action": "plain", "admissible": []}
    episode["steps"] = [episode["steps"][0] | {"observation": long, "page": plain}]
    with browsing.visit(chromium, {**ANSWERS, path: episode}) as visit:
        visit.go(TRAJECTORY)
        assert len(visit.page.locator("main").inner_text()) < 100_000
        button = visit.page.get_by_role("button", name=re.compile("more characters")).first
        before = len(visit.page.locator("#step-1").inner_text())
        button.click()
        assert len(visit.page.locator("#step-1").inner_text()) > before + 10_000
        assert not visit.complaints


def test_filters_are_in_the_address_and_in_the_request(visit: Visit) -> None:
    visit.go(PLACES["trajectories"])
    page = visit.page
    page.get_by_label("Outcome").select_option("false")
    page.get_by_label("Signal").select_option("boundary")
    page.get_by_label("Words in the task").fill("rain jacket")
    expect(page).to_have_url(re.compile(r"success=false&signal=boundary&q=rain\+jacket"))
    visit.wait_until_loaded()
    path, asked = visit.asked[-1]
    assert path == f"runs/{RUN}/trajectories"
    assert asked == {"success": ["false"], "signal": ["boundary"], "q": ["rain jacket"]}
    page.reload()
    visit.wait_until_loaded()
    assert page.get_by_label("Outcome").input_value() == "false"
    assert page.get_by_label("Words in the task").input_value() == "rain jacket"


def test_back_and_forward_navigate_between_pages(visit: Visit) -> None:
    visit.go("#/")
    page = visit.page
    page.get_by_role("link", name=RUN).first.click()
    expect(page.locator("h1")).to_have_text(RUN)
    page.get_by_role("link", name="Trajectories", exact=True).click()
    expect(page.locator("h1")).to_have_text("Trajectories")
    page.locator("[data-row]").first.click()
    expect(page.locator("h1")).to_contain_text("Episode of")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Trajectories")
    page.go_back()
    expect(page.locator("h1")).to_have_text(RUN)
    page.go_forward()
    expect(page.locator("h1")).to_have_text("Trajectories")


def test_going_back_restores_the_scroll_position(visit: Visit) -> None:
    visit.go(PLACES["arm"])
    page = visit.page
    page.locator("[data-row]", has_text="90").last.click()
    visit.wait_until_loaded()
    assert page.evaluate("window.scrollY") == 0
    page.go_back()
    row = page.locator("[data-row]", has_text="90").last
    expect(row).to_be_in_viewport()


def test_lists_steps_and_search_can_be_used_with_the_keyboard(visit: Visit) -> None:
    visit.go(PLACES["trajectories"])
    page = visit.page
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')") == TRAJECTORY
    page.keyboard.press("Enter")
    expect(page.locator("#step-4")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("j")
    expect(page).to_have_url(re.compile(r"step=3$"))
    expect(page.locator("#step-3")).to_be_focused()
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile(r"step=2$"))
    page.keyboard.press("l")
    expect(page).to_have_url(re.compile(r"g7\.2$"))
    visit.wait_until_loaded()
    page.keyboard.press("/")
    page.keyboard.type("jacket j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"#/search\?q=jacket\+j&run={RUN}$"))
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.tagName") != "INPUT"


def test_help_lists_the_keys_of_the_page_and_closes(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    page = visit.page
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("next step")
    expect(dialog).to_contain_text("search tasks and trajectories")
    place = page.url
    page.keyboard.press("j")  # nothing beneath hears of it
    assert page.url == place
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not visit.complaints


def test_a_link_to_a_step_scrolls_to_it(visit: Visit) -> None:
    visit.go(f"{TRAJECTORY}?step=3")
    step = visit.page.locator("#step-3")
    expect(step).to_have_class(re.compile("here"))
    expect(step).to_be_in_viewport()


class Colour(NamedTuple):
    """A colour of the stylesheet as an sRGB triple in [0, 1], on light and on dark pages."""

    light: tuple[float, ...]
    dark: tuple[float, ...]


def colours() -> dict[str, Colour]:
    matches = re.findall(
        r"--([\w-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)",
        (browsing.STATIC / "style.css").read_text(),
    )
    return {
        name: Colour(*(tuple(b / 255 for b in bytes.fromhex(shade)) for shade in shades))
        for name, *shades in matches
    }


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Contrast ratio of two colours by WCAG 2.2, from 1 to 21."""

    def luminance(colour: tuple[float, ...]) -> float:
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_enough_contrast_with_its_background() -> None:
    of = colours()
    grounds = ("paper", "wash", "raised")
    pairs = [(ink, ground) for ink in ("ink", "soft", "accent", "good", "bad", "warn", "warm")
             for ground in grounds]  # fmt: skip
    pairs += [(ink, f"{ink}-wash") for ink in ("accent", "good", "bad", "warn")]
    pairs += [("ink", f"{ink}-wash") for ink in ("accent", "good", "bad", "warn")]
    pairs += [("soft", "accent-wash"), ("paper", "accent")]
    for ink, ground in pairs:
        for side in ("light", "dark"):
            ratio = contrast(getattr(of[ink], side), getattr(of[ground], side))
            assert ratio >= 4.5, f"{ink} on {ground}, {side}: {ratio:.2f}"


def test_a_page_reloads_a_changed_run_at_once(chromium: Browser) -> None:
    with browsing.visit(chromium, ANSWERS) as visit:
        visit.page.add_init_script(
            "window.EventSource = class { constructor() { window.source = this; } }"
        )
        visit.go(PLACES["run"])
        visit.page.evaluate("window.source.onopen()")
        expect(visit.page.locator(".live.on")).to_be_visible()
        before = len(visit.asked)
        visit.page.evaluate("window.source.onmessage({ data: JSON.stringify({ run: 'other' }) })")
        with visit.page.expect_request(f"**/api/runs/{RUN}"):
            visit.page.evaluate(
                f"window.source.onmessage({{ data: JSON.stringify({{ run: '{RUN}' }}) }})"
            )
        assert [path for path, _ in visit.asked[before:]].count(f"runs/{RUN}") <= 1
        visit.page.evaluate("window.source.onerror()")
        expect(visit.page.locator(".live.off")).to_be_visible()


def test_colours_follow_the_system_and_the_switch(chromium: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    for scheme, dark in (("light", False), ("dark", True)):
        with browsing.visit(chromium, ANSWERS, color_scheme=scheme) as visit:
            visit.go("#/")
            assert (visit.page.evaluate(paper) != "rgb(255, 255, 255)") is dark
            visit.page.keyboard.press("t")
            assert visit.page.evaluate(paper) == "rgb(255, 255, 255)"
            visit.page.keyboard.press("t")
            assert visit.page.evaluate(paper) != "rgb(255, 255, 255)"
            visit.page.reload()
            visit.wait_until_loaded()
            assert visit.page.evaluate(paper) != "rgb(255, 255, 255)"


def test_an_episode_shows_choices_tokens_signals_and_the_verdict(shared: Visit) -> None:
    shared.jump(TRAJECTORY)
    page = shared.page
    choices = page.locator("#step-2 .choice")
    expect(choices).to_have_count(8)
    expect(choices.first).to_contain_text("72")
    page.locator("#step-2").get_by_role("button", name="Show 6 more").click()
    expect(choices).to_have_count(14)
    tokens = page.locator("#step-3 .tokens")
    expect(tokens).to_have_class(re.compile("by-logprob"))
    page.get_by_role("button", name="Advantage").click()
    expect(tokens).to_have_class(re.compile("by-advantage"))
    expect(page.locator("#step-4")).to_contain_text("invalid_action")
    expect(page.locator("#verdict")).to_contain_text("size large")
    expect(page.locator("#signals")).to_contain_text("episodes")
    expect(page.locator("#step-2 .shop-product.taken")).to_contain_text("Harbour")
    page.keyboard.press("v")
    expect(page.locator("#step-2 .shown")).to_contain_text("[SEP]")
    page.keyboard.press("v")


def test_two_episodes_are_shown_side_by_side(shared: Visit) -> None:
    shared.jump(PLACES["side"])
    expect(shared.page.locator("main")).to_contain_text("Two episodes")
    expect(shared.page.locator(".side-row")).to_have_count(4)


def test_tasks_that_got_worse_after_a_round_are_counted(shared: Visit) -> None:
    shared.jump(PLACES["round"])
    changed = shared.page.locator("#changed")
    expect(changed).to_contain_text("2 got worse")


def test_errors_and_empty_lists_say_what_to_do(chromium: Browser) -> None:
    empty = {"rows": [], "total": 0, "page": 1, "pages": 1, "per_page": 50}
    answers = {
        "about": ANSWERS["about"],
        "runs": {"runs": [], "evals": []},
        f"runs/{RUN}": ANSWERS[f"runs/{RUN}"],
        f"runs/{RUN}/trajectories": empty,
    }
    with browsing.visit(chromium, answers) as visit:
        visit.go("#/")
        expect(visit.page.locator("main")).to_contain_text("coevo train quickstart")
        visit.go(PLACES["trajectories"])
        expect(visit.page.locator(".empty")).to_contain_text("store.record=all")
        visit.go(f"{PLACES['trajectories']}?q=zzz")
        visit.page.get_by_role("link", name="Remove all filters").click()
        expect(visit.page).to_have_url(re.compile(r"trajectories$"))
        visit.go(f"#/runs/{RUN}/tasks/{TASK}")
        expect(visit.page.get_by_role("alert")).to_contain_text("There is no")
        visit.go("#/nowhere")
        expect(visit.page.locator("h1")).to_have_text("Page not found")


def test_the_page_of_a_missing_run_links_to_existing_runs(chromium: Browser) -> None:
    problem = {"error": "NotFound", "message": "There is no run 'nosuch' here.",
               "places": [f"runs/{RUN}", "runs/a b"]}  # fmt: skip
    with browsing.visit(chromium, ANSWERS, refused={"runs/nosuch": problem}) as visit:
        visit.go("#/runs/nosuch")
        page = visit.page
        expect(page.get_by_role("alert")).to_contain_text("There is no run 'nosuch' here.")
        expect(page.locator(".tabs")).to_have_count(0)
        expect(page.locator(".top-run")).to_have_count(0)
        assert page.get_by_role("link", name="a b").get_attribute("href") == "#/runs/a%20b"
        page.get_by_role("alert").get_by_role("link", name=RUN).click()
        expect(page.locator("h1")).to_have_text(RUN)
        expect(page.locator(".tabs")).to_be_visible()


def headings(page: Page, table: str) -> list[str]:
    cells = page.get_by_role("table", name=table, exact=True).locator("thead th")
    return [text.rstrip(" ↕↑↓") for text in cells.all_inner_texts()]


def test_columns_have_distinct_names_and_repeat_nothing(shared: Visit) -> None:
    page = shared.page
    shared.jump(PLACES["run"])
    names = headings(page, "Arms of the run")
    assert {"Env steps", "Learner steps"} <= set(names)
    assert "Model use" not in names, "no model was used"
    shared.jump(PLACES["trajectories"])
    names = headings(page, "Training episodes")
    assert {"Env steps", "Learner step", "Score", "Outcome"} <= set(names)
    assert "End reason" not in names, "the end reasons repeat the outcomes"
    failed = page.get_by_role("table", name="Training episodes").locator("tbody tr").nth(1)
    assert failed.inner_text().count("0.50") == 1
    assert failed.inner_text().count("failed") == 1


def test_an_end_reason_that_differs_from_the_outcome_is_shown(chromium: Browser) -> None:
    path = PLACES["trajectories"].removeprefix("#/")
    answer = json.loads(json.dumps(ANSWERS[path]))
    answer["rows"][1]["end_reason"] = "max_steps"
    with browsing.visit(chromium, {**ANSWERS, path: answer}) as visit:
        visit.go(PLACES["trajectories"])
        assert "End reason" in headings(visit.page, "Training episodes")
        expect(visit.page.get_by_role("table").locator("tbody tr").nth(1)).to_contain_text(
            "max steps"
        )


def test_the_kind_of_failure_is_a_column_and_a_filter_of_the_episodes(visit: Visit) -> None:
    visit.go(PLACES["trajectories"])
    rows = visit.page.get_by_role("table", name="Training episodes")
    assert rows.locator("td[data-label=Failure]").all_inner_texts() == ["", "argument_mismatch"] * 2
    wanted = "/trajectories?failure=argument_mismatch"
    with visit.page.expect_request(lambda request: request.url.endswith(wanted)):
        visit.page.get_by_label("Failure").select_option("argument_mismatch")


def test_the_signal_chart_includes_every_arm(shared: Visit) -> None:
    shared.jump(PLACES["run"])
    chart = shared.page.locator("figure.chart", has_text="Signals by arm")
    assert {"static", "coevolve"} <= set(chart.locator(".chart-legend").inner_text().splitlines())


def test_a_table_of_models_links_to_its_evaluations_and_names_unfinished_cells(
    shared: Visit,
) -> None:
    shared.jump(PLACES["eval-table"])
    table = shared.page.get_by_role("table", name="Two models")
    cells = [row.locator("td") for row in table.locator("tbody tr").all()]
    assert cells[0].nth(0).inner_text() == "50.0 [30.0, 70.0]\n20 tasks"
    assert cells[0].nth(1).inner_text() == "50.0 [30.0, 70.0] ± 2.0\n20 tasks, seed 1, seed 2"
    assert cells[0].nth(3).inner_text() == "price not set"
    assert cells[1].nth(0).inner_text() == "failed"
    assert cells[1].nth(1).inner_text() == "seed 1 running 7 of 20 episodes, seed 2 missing"
    links = [link.get_attribute("href") for link in table.locator("tbody a").all()]
    assert links == [
        f"#/evals/models~{name}"
        for name in ("large-shop-0", "large-files-1", "large-files-2", "small-shop-0",
                     "small-files-1")
    ]  # fmt: skip
    open_cells = shared.page.get_by_role("region", name="Unfinished cells").locator("li")
    assert [text.split("\n")[0] for text in open_cells.all_inner_texts()] == [
        "small on shop, seed 0: failed",
        "small on files, seed 1: running 7 of 20 episodes",
        "small on files, seed 2: missing",
    ]
    assert ASKED in open_cells.first.inner_text()


def test_the_list_of_evaluations_links_to_the_tables_of_models(shared: Visit) -> None:
    for place in ("#/", "#/evals"):
        shared.jump(place)
        tables = shared.page.get_by_role("table", name="Models on benchmarks")
        assert tables.locator("a[data-row]").get_attribute("href") == PLACES["eval-table"]


def test_the_training_table_shows_how_many_tokens_carried_a_gradient(shared: Visit) -> None:
    shared.jump(PLACES["run"])
    table = shared.page.get_by_role("table", name="Training by arm", exact=True)
    rows = table.locator("tbody tr", has_text="tokens with gradient")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("16,490")
    expect(rows.nth(1)).to_contain_text("40.0")


def test_the_page_of_two_arms_shows_held_out_tasks_first_and_sorts_by_difference(
    chromium: Browser,
) -> None:
    path = f"runs/{RUN}/tasks"
    rows = [
        {**ANSWERS[path]["rows"][0], "id": f"{n}" * 64, "instruction": f"Task {n}.",
         "practice": [{"arm": arm, "groups": 1, "episodes": 4, "successes": k}
                      for arm, k in zip(("static", "coevolve"), ks, strict=True)]}
        for n, ks in enumerate([(1, 2), (4, 0), (0, 3), (2, 2)])
    ]  # fmt: skip
    rows.append({**rows[0], "id": "f" * 64, "instruction": "Task of one arm.",
                 "practice": rows[0]["practice"][:1]})  # fmt: skip
    answer = {**ANSWERS[path], "rows": rows, "total": len(rows)}
    with browsing.visit(chromium, {**ANSWERS, path: answer}) as visit:
        visit.go(PLACES["arms"])
        page = visit.page
        expect(page.locator("h2").first).to_have_text("Held-out tasks")
        expect(page.locator(".figures")).to_contain_text("48.0")
        expect(page.locator("main")).to_contain_text("do not show which arm is better")
        first = page.locator("tbody th")
        expect(first).to_have_count(5)

        def order() -> list[str]:
            return [text.removeprefix("Task ").rstrip(".") for text in first.all_inner_texts()]

        assert order() == ["1", "2", "0", "3", "of one arm"], "largest difference first"
        expect(page.locator("tbody tr").first).to_contain_text("−100")
        assert not page.locator("tbody .outcome").count(), "differences in training are no verdict"
        page.get_by_role("button", name="Difference").click()
        expect(page).to_have_url(re.compile("sort=difference"))
        assert order() == ["1", "3", "0", "2", "of one arm"]
        page.get_by_role("button", name="Difference").click()
        expect(first.first).to_have_text("Task 2.")
        assert order() == ["2", "0", "3", "1", "of one arm"]
        page.get_by_label("Words in the task").fill("one arm")
        expect(first).to_have_count(1)
        assert not visit.complaints


def test_sorting_a_column_requests_the_sorted_list(visit: Visit) -> None:
    for place, label, sort in (
        ("trajectories", "Outcome", "success"),
        ("trajectories", "Advantage", "advantage"),
        ("tasks", "Success", "success"),
        ("tasks", "Descendants", "children"),
        ("drafts", "Verdict", "gate"),
        ("drafts", "Round", "found"),
    ):
        visit.go(PLACES[place])
        visit.page.get_by_role("table").get_by_role("button", name=label).click()
        expect(visit.page).to_have_url(re.compile(f"sort={sort}$"))
        visit.wait_until_loaded()
        assert (f"runs/{RUN}/{place}", {"sort": [sort]}) in visit.asked


def test_a_narrow_window_hides_missing_values_and_cuts_no_label(chromium: Browser) -> None:
    with browsing.visit(chromium, ANSWERS, viewport={"width": 390, "height": 844}) as visit:
        visit.go(PLACES["run"])
        page = visit.page
        baseline = page.get_by_role("table", name="Arms of the run").locator("tbody tr").first
        assert baseline.locator("td:visible").count() == 3, "success, score and stored episodes"
        label = "getComputedStyle(node, '::before')"
        style = baseline.locator("td").first.evaluate(f"node => {label}.textOverflow")
        assert style == "clip"
        tabs = page.locator(".tabs")
        assert tabs.evaluate("node => node.scrollWidth > node.clientWidth")
        assert "gradient" in tabs.evaluate("node => getComputedStyle(node).backgroundImage")
        visit.go(PLACES["trajectories"])
        tops = [page.get_by_label(name).bounding_box() for name in ("From step", "To step")]
        assert [top["y"] for top in tops if top] == 2 * [tops[0]["y"] if tops[0] else None]


def test_the_webshop_receipt_lists_only_useful_facts(shared: Visit) -> None:
    shared.jump(TRAJECTORY)
    shop = shared.page.locator("#step-end .shop")
    facts = shop.locator(".facts > div")
    assert [" ".join(text.split()) for text in facts.all_inner_texts()] == [
        "Product B000000000", "Options color: navy, size: large", "Score 0.5",
    ]  # fmt: skip
    for blank in ("attrs", "None", "instuction"):
        expect(shop).not_to_contain_text(blank)


def test_an_episode_shows_the_advice_that_it_received(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    section = visit.page.locator(".shown-with")
    expect(section).to_contain_text("Received 1 piece of advice")
    expect(section).to_contain_text("Choose every option before buying.")
    expect(section).to_contain_text("recover-from-errors")
    expect(section).not_to_contain_text("exp:")
    section.get_by_role("link", name="All episodes with it").click()
    expect(visit.page).to_have_url(re.compile(f"advice={ADVICE}"))
    visit.wait_until_loaded()
    queries = [asked for path, asked in visit.asked if path == f"runs/{RUN}/trajectories"]
    assert queries[-1]["advice"] == [ADVICE]


def test_an_episode_shows_the_label_of_each_step_and_how_it_was_found(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    page = visit.page
    card = page.locator("#noted .card", has_text="attribution")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("Found by replaying the episode without single steps.")
    expect(card).to_contain_text("2 good steps, 1 bad, 1 without a label")
    for number, label in enumerate(STEP_LABELS, 1):
        words = {1: "good", -1: "bad", 0: "no label"}[label]
        expect(page.locator(f"#step-{number} .step-head .tag", has_text=words)).to_have_count(1)
        expect(card.get_by_label(f"Step {number}: {words}")).to_be_visible()
        expect(page.locator(".outline li").nth(number - 1)).to_contain_text(
            {1: "✓", -1: "✗", 0: "·"}[label]
        )
    card.get_by_label("Step 3: bad").click()
    expect(page).to_have_url(re.compile("step=3"))
    assert not visit.complaints


def test_a_task_links_to_episodes_before_and_after_its_interface_changed(visit: Visit) -> None:
    visit.go(PLACES["task"])
    link = visit.page.get_by_role("link", name="coevolve: step 7 compared with step 31")
    href = link.get_attribute("href") or ""
    assert href.startswith("#/side?")
    assert f"runs/{RUN}/trajectories/coevolve.g7.0" in unquote(href)
    assert f"runs/{RUN}/trajectories/coevolve.g31.2" in unquote(href)


def test_the_link_to_a_page_can_be_copied(chromium: Browser) -> None:
    with browsing.visit(
        chromium, ANSWERS, permissions=["clipboard-read", "clipboard-write"]
    ) as visit:
        visit.go(PLACES["task"])
        visit.page.get_by_role("button", name="Copy link").click()
        expect(visit.page.get_by_role("button", name="Copied")).to_be_visible()
        assert visit.page.evaluate("navigator.clipboard.readText()") == visit.page.url


def test_an_arm_shows_its_notes_interfaces_and_advice_in_one_table(visit: Visit) -> None:
    visit.go(PLACES["arm"])
    page = visit.page
    rows = page.locator("#notes tbody tr")
    expect(rows).to_have_count(11 + 1 + 3 + 3)
    expect(rows.nth(1)).to_contain_text("argument mismatch")
    expect(rows.nth(1)).to_contain_text("27.5\u202f%")
    numbers = rows.filter(has_text="outlook")
    expect(numbers).to_contain_text("80.0\u202f%")
    expect(numbers).to_contain_text("no change 50.0\u202f%")
    interfaces = rows.filter(has_text="interface")
    expect(interfaces.nth(0)).to_contain_text("Adds nothing")
    last = interfaces.nth(2)
    expect(last.locator("li:visible")).to_have_count(2)
    last.locator("summary").click()
    expect(last.locator("li:visible")).to_have_count(8)
    advice = rows.filter(has_text="experiences")
    expect(advice.nth(0)).to_contain_text("+0.40")
    expect(advice.nth(0)).to_contain_text("Choose every option before buying.")
    expect(advice.nth(2)).to_contain_text("dropped: harmful")
    rows.nth(1).get_by_role("link", name="step 7").first.click()
    expect(page.locator("h1")).to_contain_text("Episode of")
    assert not visit.complaints


def test_an_episode_shows_expected_beside_observed_texts(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    page, answer = visit.page, ANSWERS[TRAJECTORY.removeprefix("#/")]
    expect(page.locator("#noted figure.chart")).to_contain_text("Expected and observed: outlook")
    expect(page.locator("#noted")).to_contain_text("Choose every option before buying.")
    first = page.locator("#step-1 .expected-row")
    expect(first).to_have_count(2)  # the next observation, and the one after it
    expect(first.nth(0)).to_contain_text("70.0\u202f% similar")
    expect(first.nth(0)).to_contain_text("A page with jackets.")
    expect(first.nth(0)).to_contain_text(answer["steps"][1]["observation"][:40])
    expect(first.nth(1)).to_contain_text("Nothing.")
    expect(first.nth(1)).to_contain_text(answer["steps"][2]["observation"][:40])
    expect(page.locator("#step-2 .expected-row").first).to_contain_text(
        "Identical to the observed text."
    )
    last = len(answer["steps"])
    if last == 3:
        expect(page.locator("#step-3 .expected-row").nth(0)).to_contain_text("Thank you!")
        expect(page.locator("#step-3 .expected-row").nth(1)).to_contain_text("had ended")
    assert not visit.complaints


def test_an_answer_that_is_only_its_action_is_shown_once(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    for number, n_answers in ((1, 0), (4, 1)):
        labels = visit.page.locator(f"#step-{number} .did .did-label")
        expect(labels.filter(has_text="Action")).to_have_count(1)
        expect(labels.filter(has_text="Answer")).to_have_count(n_answers)


def test_an_arm_without_notes_shows_no_notes_section(visit: Visit) -> None:
    visit.go(PLACES["arm"].replace("coevolve", "static"))
    expect(visit.page.get_by_role("heading", name="Success by task")).to_be_visible()
    visit.page.wait_for_load_state("networkidle")
    assert any(path.endswith("/static/notes") for path, _ in visit.asked)
    assert not visit.page.locator("#notes").count()


def test_an_episode_shows_its_turn_labels_advice_and_interface(visit: Visit) -> None:
    visit.go(TRAJECTORY)
    page = visit.page
    notes = page.locator("#noted")
    turns = notes.locator(".card", has=visit.page.locator(".facts")).first.locator(".facts > div")
    assert [" ".join(text.split()) for text in turns.all_inner_texts()] == [
        "Turn 1 of 3 pass",
        "Turn 2 of 3 argument mismatch",
        "Turn 3 of 3 not reached",
    ]
    assert "Whole episode" in notes.inner_text()
    expect(page.locator("#step-3 .step-head")).to_contain_text("turned it")
    section = page.locator(".shown-with")
    expect(section).to_contain_text("recover-from-errors")
    interface = section.locator("details", has_text="Interface")
    interface.locator("summary").first.click()
    expect(interface.locator("li").first).to_be_visible()
    notes.get_by_role("link", name="Step 3").first.click()
    expect(page).to_have_url(re.compile("step=3"))
    assert not visit.complaints
