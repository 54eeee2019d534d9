"""Labels of ALFWorld episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.trajectory import EndReason, Step
from coevo_gym.envs.alfworld.goals import COOL, HEAT, LOOK, PICK, TWO, RoomGoal
from coevo_gym.envs.alfworld.tasks import goal_of
from coevo_gym.envs.diagnosis import require_diagnosable
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env
from tests.diagnosing import episode, label_of, modes_of

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
def test_each_trace_gets_its_label(label: str, steps: list[Step], end: EndReason) -> None:
    assert label_of("alfworld", episode(steps, end=end)) == label


@pytest.mark.parametrize("shares", [[1.0], [0.0, 1.0], [0.5, 0.5, 1.0]])
def test_a_successful_episode_is_labelled_pass(shares: list[float]) -> None:
    assert label_of("alfworld", episode(ran(shares, ["fly"] * 9), success=True)) == "pass"


@pytest.mark.parametrize(
    "end", [EndReason.TIME_LIMIT, EndReason.CONTEXT_OVERFLOW, EndReason.MAX_TOKENS]
)
def test_an_episode_without_actions_is_labelled_an_empty_turn(end: EndReason) -> None:
    assert label_of("alfworld", episode(end=end)) == "empty_turn_model_response"


def test_an_episode_without_progress_info_is_still_labelled() -> None:
    assert label_of("alfworld", episode([Step("", "", "look")])) == "state_mismatch"


def test_every_label_has_three_traces() -> None:
    assert min(Counter(label for label, _, _ in TRACES).values()) >= 3


def test_episodes_on_the_real_engine_get_the_expected_labels() -> None:
    (task, *_) = coevo_gym.tasks("alfworld", "train", subset="builtin")
    env, labels = make_env("alfworld", task), []
    for commands in (task.solution, ["fly", "sing"], ["look", "inventory"]):
        env.reset(options={"task": task})
        for command in commands:
            *_, over, _, _ = env.step(command)
        if not over:
            env.cut(FAILED)
        labels.append(label_of("alfworld", trajectory_of(env)))
    env.close()
    assert labels == ["pass", "invalid_tool_call", "state_mismatch"]


def did(*commands: str, refused: Sequence[str] = ()) -> list[Step]:
    """Steps with these commands, each on a text of its own; those that are refused come last."""
    kinds = [""] * len(commands) + ["not_admissible"] * len(refused)
    both = zip([*commands, *refused], kinds, strict=True)
    return [
        Step(text := f"You see {n}.", text, command, error_kind=kind)
        for n, (command, kind) in enumerate(both)
    ]


def goal(kind: str = PICK, place: str = "Shelf") -> dict[str, Any]:
    lamp = "DeskLamp" if kind == LOOK else ""
    wanted = RoomGoal(kind=kind, object="Mug", receptacle="" if lamp else place, toggle=lamp)
    return {"goal": wanted.model_dump()}


TAKE, TAKE_PAN = "take mug 1 from desk 1", "take pan 2 from stoveburner 1"
PUT, PUT_2 = "move mug 1 to shelf 1", "move mug 2 to shelf 2"
WALK = [f"go to drawer {n}" for n in range(5)]
MODES: list[tuple[str, list[Step], dict[str, Any], EndReason]] = [
    ("wrong_receptacle", did(TAKE, "move mug 1 to desk 1"), goal(), SPENT),
    ("wrong_receptacle", did(TAKE, "put mug 1 in/on desk 1", refused=["use x 1"]), goal(), FAILED),
    ("wrong_receptacle", did(TAKE, PUT, TAKE, "move mug 1 to drawer 2"), goal(TWO), SPENT),
    ("wrong_target_location", did(TAKE, PUT, PUT_2), goal(TWO), SPENT),
    ("wrong_target_location", did(PUT, PUT_2, *WALK), goal(TWO), FAILED),
    ("wrong_target_location", did(PUT, PUT_2, TAKE_PAN, "move pan 2 to bed 1"), goal(TWO), SPENT),
    ("missing_precondition", did(TAKE, PUT), goal(HEAT), SPENT),
    ("missing_precondition", did(TAKE, refused=["heat mug 1 with microwave 1"]), goal(HEAT), SPENT),
    ("missing_precondition", did(TAKE, refused=["use desklamp 1"]), goal(LOOK), SPENT),
    ("missing_precondition", did(refused=["clean mug 1 with sinkbasin 1"]), {}, SPENT),
    ("entity_confusion", did(TAKE_PAN, "move pan 2 to shelf 1"), goal(), SPENT),
    ("entity_confusion", did(TAKE_PAN, "move pan 2 to shelf 1", *WALK), goal(HEAT), FAILED),
    ("entity_confusion", did(TAKE_PAN, "move pan 2 to bed 1", TAKE), goal(LOOK), SPENT),
    ("wrong_object_interaction", did(TAKE_PAN, "heat pan 2 with microwave 1"), goal(HEAT), SPENT),
    ("wrong_object_interaction", did("cool egg 1 with fridge 1", *WALK), goal(COOL), FAILED),
    ("wrong_object_interaction", did("clean pan 2 with sinkbasin 1"), goal(), SPENT),
    ("action_format_error", did("look", refused=["I go to the desk."]), goal(), SPENT),
    ("action_format_error", did(*WALK[:2], refused=["fly"]), {}, SPENT),
    ("action_format_error", did(refused=["", "go", "heat mug 1"]), goal(HEAT), FAILED),
    ("repeated_failed_action", did(*WALK[:2], refused=["open bed 1"] * 2), goal(), SPENT),
    ("repeated_failed_action", did(refused=["open bed 1"] * 2), {}, FAILED),
    ("repeated_failed_action", did(*WALK, refused=["take mug 9 from bed 1"] * 3), goal(), SPENT),
    ("navigation_loop", [*did(*WALK[:2])] * 3, goal(), SPENT),
    ("navigation_loop", [*did(*WALK[:1]), *did(*WALK)] + did("look") * 3, goal(), SPENT),
    ("navigation_loop", did(*WALK, refused=WALK), {}, SPENT),
    ("repetitive_exploration", did("look", *["inventory"] * 4, "look"), goal(), SPENT),
    ("repetitive_exploration", did(*WALK[:3] * 3), goal(), FAILED),
    ("repetitive_exploration", did(*["look", WALK[0], WALK[1]] * 4), {}, SPENT),
    ("premature_give_up", did("look"), goal(), EndReason.AGENT_DONE),
    ("premature_give_up", did(*WALK), goal(HEAT), EndReason.AGENT_DONE),
    ("premature_give_up", [], {}, EndReason.FAILED),
    ("exhaustive_exploration_failure", did(*WALK), goal(), SPENT),
    ("exhaustive_exploration_failure", did(TAKE, *WALK), goal(LOOK), EndReason.MAX_TOKENS),
    ("exhaustive_exploration_failure", [], {}, EndReason.CONTEXT_OVERFLOW),
]


@pytest.mark.parametrize(("mode", "steps", "report", "end"), MODES)
def test_each_trace_gets_its_failure_mode(
    mode: str, steps: list[Step], report: dict[str, Any], end: EndReason
) -> None:
    (actual, *_) = modes_of("alfworld", episode(steps, report=report, end=end))
    assert actual == mode


def test_an_object_picked_up_again_is_not_in_a_wrong_place() -> None:
    steps = did(TAKE, "move mug 1 to desk 1", TAKE, *WALK)
    modes = modes_of("alfworld", episode(steps, report=goal(), end=SPENT))
    assert modes == ("exhaustive_exploration_failure",)


def test_every_failure_mode_has_three_traces() -> None:
    counts = Counter(mode for mode, *_ in MODES)
    assert set(counts) == set(require_diagnosable(get_benchmark("alfworld")).modes)
    assert min(counts.values()) >= 3


def test_the_report_contains_the_goal_of_the_task() -> None:
    (task, *_) = coevo_gym.tasks("alfworld", "train", subset="builtin")
    env = make_env("alfworld", task)
    env.reset(options={"task": task})
    for command in task.solution[:-1]:
        env.step(command)
    env.cut(FAILED)
    done = trajectory_of(env)
    env.close()
    assert RoomGoal.model_validate(done.report["goal"]) == goal_of(task.world)  # type: ignore[arg-type]
