"""Labels of WebShop episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, Step
from coevo_gym.envs.diagnosis import require_diagnosable
from coevo_gym.envs.webshop.env import WebShopEnv
from coevo_gym.envs.webshop.tasks import native_tasks
from coevo_gym.episodes.episode import trajectory_of
from tests.diagnosing import episode, label_of, modes_of


def bought(**parts: float) -> dict[str, float]:
    full = {"r_type": 1.0, "r_att": 1.0, "r_option": 1.0, "r_price": 1.0} | parts
    return {f"webshop.{name}": value for name, value in full.items()}


def ran(*kinds: str) -> list[Step]:
    """Steps with these kinds of error."""
    return [Step("page", "page", "click[x]", error_kind=kind) for kind in kinds]


TRACES: list[tuple[str, list[Step], Mapping[str, float]]] = [
    ("invalid_tool_call", ran("", "unparsable"), {}),
    ("invalid_tool_call", ran("not_clickable", "", ""), bought(r_type=0.5)),
    ("invalid_tool_call", ran("unknown_action", "empty_search"), bought(r_option=0.0)),
    ("missing_tool_call", ran(""), {}),
    ("missing_tool_call", ran("", "", ""), {}),
    ("missing_tool_call", ran(*[""] * 15), {}),
    ("argument_mismatch", ran("", ""), bought(r_option=0.5)),
    ("argument_mismatch", ran("", ""), bought(r_att=0.0, r_option=-1.0)),
    ("argument_mismatch", ran("", ""), bought(r_price=0.0)),
    ("argument_mismatch", ran("", ""), bought(r_type=0.0, r_att=0.5)),
    ("state_mismatch", ran("", ""), bought(r_type=0.5)),
    ("state_mismatch", ran("", ""), bought(r_type=0.1, r_option=-1.0)),
    ("state_mismatch", ran(""), bought(r_type=0.0, r_att=-1.0, r_option=-1.0)),
]


@pytest.mark.parametrize(("label", "steps", "report"), TRACES)
def test_each_trace_gets_its_label(
    label: str, steps: list[Step], report: Mapping[str, float]
) -> None:
    end = EndReason.FAILED if report else EndReason.MAX_STEPS
    assert label_of("webshop", episode(steps, report=report, end=end)) == label


@pytest.mark.parametrize("kinds", [[""], ["", ""], ["not_clickable", ""]])
def test_a_successful_purchase_is_labelled_pass(kinds: list[str]) -> None:
    """Also after an impossible action."""
    assert label_of("webshop", episode(ran(*kinds), report=bought(), success=True)) == "pass"


@pytest.mark.parametrize(
    "end", [EndReason.TIME_LIMIT, EndReason.CONTEXT_OVERFLOW, EndReason.MAX_TOKENS]
)
def test_an_episode_without_actions_is_labelled_an_empty_turn(end: EndReason) -> None:
    assert label_of("webshop", episode(end=end)) == "empty_turn_model_response"


def test_every_label_has_three_traces() -> None:
    assert min(Counter(label for label, _, _ in TRACES).values()) >= 3


def test_episodes_on_the_real_engine_get_the_expected_labels() -> None:
    env = WebShopEnv(subset="builtin")
    wanted, other = native_tasks(Split.TRAIN, "builtin")[:2]
    labels = []
    for actions in (
        wanted.solution,
        ["click[nothing such]", *wanted.solution[:-1]],
        wanted.solution[:-1],
        other.solution,
    ):
        env.reset(options={"task": wanted})
        for action in actions:
            *_, over, _, _ = env.step(action)
        if not over:
            env.cut(EndReason.TIME_LIMIT)
        labels.append(label_of("webshop", trajectory_of(env)))
    env.close()
    assert labels == ["pass", "invalid_tool_call", "missing_tool_call", "argument_mismatch"]


def went(*actions: str, calls: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[Step]:
    """Steps with these actions, from the page that shows the instruction."""
    first = "WebShop [SEP] Instruction: [SEP] i want a red wool scarf under 40 dollars [SEP] Search"
    pages = [first, *["a page"] * len(actions)]
    filled = [[*names, *[""] * (len(actions) - len(names))] for names in (calls, kinds)]
    return [
        Step(page, page, action, calls=(call,) if call else (), error_kind=kind)
        for page, action, call, kind in zip(pages, actions, *filled, strict=False)
    ]


def clicks(n: int) -> list[str]:
    return [f"click[{i}]" for i in range(n)]


SEARCH, OTHER = "search[red scarf]", "search[wool]"
OPTION = ["search", "item", "option", "option"]
FOUR = went(SEARCH, *clicks(3), "click[buy now]")
CHOSE = went(SEARCH, *clicks(3), "click[buy now]", calls=OPTION)
HASTY = went(SEARCH, "click[b1]", "click[buy now]")
MODES: list[tuple[str, list[Step], Mapping[str, float]]] = [
    ("price_constraint_violation", FOUR, bought(r_price=0.0)),
    ("price_constraint_violation", HASTY, bought(r_price=0.0, r_att=0.5)),
    ("price_constraint_violation", CHOSE, bought(r_price=0.0, r_option=0.5)),
    ("premature_purchase", HASTY, bought(r_option=0.0)),
    ("premature_purchase", HASTY, bought(r_att=0.5, r_option=-1.0)),
    ("premature_purchase", HASTY[:2], bought(r_att=0.0, r_option=0.0)),
    ("wrong_attribute_selection", CHOSE, bought(r_option=0.5)),
    ("wrong_attribute_selection", CHOSE, bought(r_option=0.0)),
    ("wrong_attribute_selection", CHOSE, bought(r_option=0.5, r_att=0.5)),
    ("missing_attribute_selection", FOUR, bought(r_option=0.0)),
    ("missing_attribute_selection", FOUR, bought(r_option=0.5)),
    ("missing_attribute_selection", FOUR, bought(r_option=0.5, r_att=0.0)),
    ("wrong_product_selection", FOUR, bought(r_type=0.5)),
    ("wrong_product_selection", HASTY, bought(r_type=0.1, r_att=0.0, r_price=0.0)),
    ("wrong_product_selection", CHOSE, bought(r_att=0.5)),
    ("action_format_error", went("buy", SEARCH, kinds=["unparsable"]), {}),
    ("action_format_error", went("fly[x]", SEARCH, *clicks(1), kinds=["unknown_action"]), {}),
    ("action_format_error", went("", "", kinds=["unparsable"] * 2), {}),
    ("excessive_browsing", went(SEARCH, *clicks(2), calls=["search", "page", "page"]), {}),
    ("excessive_browsing", went(SEARCH, "click[next >]", calls=["search", "page"]), {}),
    ("excessive_browsing", went(SEARCH, *clicks(3), calls=["search", "page", "item", "page"]), {}),
    ("repeated_query", went(SEARCH, "click[b1]", SEARCH), {}),
    ("repeated_query", went(SEARCH, "search[scarf, RED]"), {}),
    ("repeated_query", went(OTHER, SEARCH, OTHER, "click[b1]"), {}),
    ("navigation_error", went(SEARCH, "click[x]", kinds=["", "not_clickable"]), {}),
    ("navigation_error", went("click[x]", SEARCH, "click[b1]", kinds=["not_clickable"]), {}),
    ("navigation_error", went(*clicks(3), kinds=["not_clickable"] * 3), {}),
    ("irrelevant_query", went("search[blue kettle]"), {}),
    ("irrelevant_query", went("search[i want a kettle]", "click[b1]"), {}),
    ("irrelevant_query", went("search[kettle]", "search[pot]", *clicks(3)), {}),
    ("premature_termination", went(SEARCH), {}),
    ("premature_termination", went("search[kettle]", OTHER, *clicks(3)), {}),
    ("premature_termination", [], {}),
]


@pytest.mark.parametrize(("mode", "steps", "report"), MODES)
def test_each_trace_gets_its_failure_mode(
    mode: str, steps: list[Step], report: Mapping[str, float]
) -> None:
    end = EndReason.FAILED if report else EndReason.MAX_STEPS
    (actual, *_) = modes_of("webshop", episode(steps, report=report, end=end))
    assert actual == mode


def test_every_failure_mode_has_three_traces() -> None:
    counts = Counter(mode for mode, _, _ in MODES)
    assert set(counts) == set(require_diagnosable(get_benchmark("webshop")).modes)
    assert min(counts.values()) >= 3
