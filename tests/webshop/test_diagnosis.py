"""Labels of WebShop episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, Step
from coevo_gym.envs.webshop.env import WebShopEnv
from coevo_gym.envs.webshop.tasks import native_tasks
from coevo_gym.episodes.episode import trajectory_of
from tests.diagnosing import episode, label_of


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
def test_labels(label: str, steps: list[Step], report: Mapping[str, float]) -> None:
    end = EndReason.FAILED if report else EndReason.MAX_STEPS
    assert label_of("webshop", episode(steps, report=report, end=end)) == label


@pytest.mark.parametrize("kinds", [[""], ["", ""], ["not_clickable", ""]])
def test_a_purchase_that_fits_passes(kinds: list[str]) -> None:
    """Also after an action that was impossible."""
    assert label_of("webshop", episode(ran(*kinds), report=bought(), success=True)) == "pass"


@pytest.mark.parametrize(
    "end", [EndReason.TIME_LIMIT, EndReason.CONTEXT_OVERFLOW, EndReason.MAX_TOKENS]
)
def test_nothing_done_is_an_empty_turn(end: EndReason) -> None:
    assert label_of("webshop", episode(end=end)) == "empty_turn_model_response"


def test_every_label_has_three_traces() -> None:
    assert min(Counter(label for label, _, _ in TRACES).values()) >= 3


def test_real_episodes() -> None:
    env = WebShopEnv(subset="builtin")
    wanted, other = native_tasks(Split.TRAIN, "builtin")[:2]
    found = []
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
        found.append(label_of("webshop", trajectory_of(env)))
    env.close()
    assert found == ["pass", "invalid_tool_call", "missing_tool_call", "argument_mismatch"]
