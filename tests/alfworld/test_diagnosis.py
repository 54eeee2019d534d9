"""Labels of ALFWorld episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

import coevo_gym
from coevo_gym.core.trajectory import EndReason, Step
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env
from tests.diagnosing import episode, label_of

FAILED, SPENT = EndReason.TIME_LIMIT, EndReason.MAX_STEPS


def ran(shares: Sequence[float], refused: Sequence[str] = ()) -> list[Step]:
    """Steps with these shares of the goal met; those with these commands come first, and fail."""
    actions = [*refused, *(f"go to shelf {i}" for i in range(len(shares)))]
    met = [shares[0]] * len(refused) + list(shares)
    return [
        Step(
            "", "", action,
            error_kind="not_admissible" if i < len(refused) else "",
            extras={"alfworld.goal_conditions": share},
        )
        for i, (action, share) in enumerate(zip(actions, met, strict=True))
    ]  # fmt: skip


TRACES = [
    ("invalid_tool_call", ran([0.0, 0.0], ["take"]), FAILED),
    ("invalid_tool_call", ran([0.0, 0.5], ["fly", "fly"]), SPENT),
    ("invalid_tool_call", ran([0.0] * 4, ["a", "b"]), SPENT),
    ("argument_mismatch", ran([0.0, 0.0, 0.5]), FAILED),
    ("argument_mismatch", ran([0.0, 0.5, 0.0, 0.5]), SPENT),
    ("argument_mismatch", ran([0.0] * 6 + [0.5], ["fly", "fly"]), SPENT),
    ("recovery_failure", ran([0.0] * 5, ["fly", "fly"]), SPENT),
    ("recovery_failure", ran([0.0] * 9, ["fly", "sing", "fly"]), SPENT),
    ("recovery_failure", ran([0.0, 0.5, *[0.0] * 5], ["take 1", "take 1", "take 1"]), SPENT),
    ("state_mismatch", ran([0.0] * 3), SPENT),
    ("state_mismatch", ran([0.0] * 5, ["fly", "sing"]), SPENT),
    ("state_mismatch", ran([0.0] * 5, ["fly", "fly"]), FAILED),
    ("state_mismatch", ran([0.5] * 3), SPENT),
]


@pytest.mark.parametrize(("label", "steps", "end"), TRACES)
def test_labels(label: str, steps: list[Step], end: EndReason) -> None:
    assert label_of("alfworld", episode(steps, end=end)) == label


@pytest.mark.parametrize("shares", [[1.0], [0.0, 1.0], [0.5, 0.5, 1.0]])
def test_a_goal_that_holds_passes(shares: list[float]) -> None:
    assert label_of("alfworld", episode(ran(shares, ["fly"] * 9), success=True)) == "pass"


@pytest.mark.parametrize(
    "end", [EndReason.TIME_LIMIT, EndReason.CONTEXT_OVERFLOW, EndReason.MAX_TOKENS]
)
def test_nothing_done_is_an_empty_turn(end: EndReason) -> None:
    assert label_of("alfworld", episode(end=end)) == "empty_turn_model_response"


def test_an_episode_that_tells_no_progress_is_labelled_all_the_same() -> None:
    assert label_of("alfworld", episode([Step("", "", "look")])) == "state_mismatch"


def test_every_label_has_three_traces() -> None:
    assert min(Counter(label for label, _, _ in TRACES).values()) >= 3


def test_real_episodes() -> None:
    (task, *_) = coevo_gym.tasks("alfworld", "train", subset="builtin")
    env, found = make_env("alfworld", task), []
    for commands in (task.solution, ["fly", "sing"], ["look", "inventory"]):
        env.reset(options={"task": task})
        for command in commands:
            *_, over, _, _ = env.step(command)
        if not over:
            env.cut(FAILED)
        found.append(label_of("alfworld", trajectory_of(env)))
    env.close()
    assert found == ["pass", "invalid_tool_call", "state_mismatch"]
