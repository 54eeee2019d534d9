"""Drafts around a trace, and what it takes to become a task."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.envs.webshop.builder import price_cap
from coevo_gym.envs.webshop.engine.goals import NO_CAP
from coevo_gym.envs.webshop.tasks import builtin_catalogue, split_of
from coevo_gym.envs.webshop.world import WebShopVerifier
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env
from tests.webshop.handmade import draft_of

WEBSHOP = get_benchmark("webshop")
TRAIN = coevo_gym.tasks("webshop", "train", "builtin")
WITH_OPTIONS = next(task for task in TRAIN if len(task.solution) == 4)


def trace_of(task: Task) -> Trajectory:
    env = make_env("webshop", task)
    for action in task.solution:
        env.step(action)
    return trajectory_of(env)


def test_a_native_task_is_rebuilt_from_its_own_reference() -> None:
    built = WEBSHOP.build(draft_of(WITH_OPTIONS))
    verifier = built.verifier
    assert isinstance(verifier, WebShopVerifier)
    assert verifier.asin == WITH_OPTIONS.scenario
    assert verifier.options == WITH_OPTIONS.verifier.options  # type: ignore[attr-defined]
    assert (built.split, built.origin) == (Split.TRAIN, "evolved")
    assert WEBSHOP.replay(built, built.solution).scores[-1] == 1.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"solution": WITH_OPTIONS.solution[:-1]}, "end without a purchase"),
        ({"solution": (*WITH_OPTIONS.solution, "click[back to search]")}, "comes after the purch"),
        ({"solution": ("search[mug]", "click[b000000000]", "click[buy now]")}, "action 2"),
        ({"solution": ("buy it all",) * 3}, "action 1, 'buy it all'"),
        ({"scenario": TRAIN[50].scenario}, "but its actions buy"),
        ({"instruction": "Buy me something nice."}, "does not mention the option"),
        ({"instruction": WITH_OPTIONS.instruction + " Under 1 dollar."}, "than the cap of 1.00"),
    ],
)
def test_a_draft_that_proves_no_task_is_refused_with_a_reason(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(BuildError, match=reason):
        WEBSHOP.build(draft_of(WITH_OPTIONS, **changes))


def test_an_instruction_without_an_attribute_or_option_is_refused() -> None:
    plain = next(task for task in TRAIN if len(task.solution) == 3)
    with pytest.raises(BuildError, match="does not mention any attribute or option"):
        WEBSHOP.build(draft_of(plain, instruction="Buy me something nice."))


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("under 40 dollars", 40.0),
        ("for less than $25.50, please", 25.5),
        ("a 12 inch pan", NO_CAP),
        ("below 30 dollars, no, under 20 dollars", 20.0),
        ("under 0 dollars", NO_CAP),
        ("a sofa under $1,200", 1200.0),
        ("chair up to 300 lbs, under 500 dollars", 500.0),
        ("a tray, up to 1,200 lbs", NO_CAP),
        ("a lamp within 35.", 35.0),
        ("a lamp under 35, please", 35.0),
        (f"under {'9' * 400} dollars", NO_CAP),
    ],
)
def test_price_caps_are_parsed_from_instructions(text: str, cap: float) -> None:
    assert price_cap(text) == cap


def test_drafts_stay_in_the_family_of_their_context_and_most_can_be_built() -> None:
    catalogue, rng = builtin_catalogue(), np.random.default_rng(0)
    built, drafts = 0, []
    for task in TRAIN[::25]:
        context = Context(kind="boundary", task=task)
        for draft in WEBSHOP.drafts(trace_of(task), context, rng):
            assert catalogue[draft.scenario].query == catalogue[task.scenario].query
            assert split_of(draft.scenario) is Split.TRAIN
            drafts.append(draft)
            try:
                new_task = WEBSHOP.build(draft)
            except BuildError:
                continue
            built += WEBSHOP.replay(new_task, new_task.solution).scores[-1] == 1.0
    assert built / len(drafts) > 0.7
    assert len({draft.id for draft in drafts}) > 0.9 * len(drafts)
    assert len(Counter(draft.scenario for draft in drafts)) > 0.5 * len(drafts)
