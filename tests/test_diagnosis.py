"""Labels of turns: the seam, reports that hold none, and the toy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import EndReason, Step, Trajectory
from coevo_gym.envs.diagnosis import (
    Diagnosis,
    TurnFacts,
    TurnLabel,
    diagnosis_of,
    facts_of,
    failures_in,
    require_diagnosable,
    turn_label,
)
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.view.safe import partial_scores
from tests import toy
from tests.diagnosing import check_modes, episode, label_of
from tests.fuzz.texts import ANY_TEXT

toy.register()

KEYS = st.sampled_from(
    ["turns", "tests", "passed", "requirement", "reached", "calls", "webshop.r_type",
     "webshop.r_att", "webshop.r_option", "label", "goal", "kind", "object"]
)  # fmt: skip
TEXTS = ANY_TEXT | st.lists(
    st.sampled_from(
        ["Execution failed. Traceback:", "NameError: x", "TypeError: y", "Exception: Response ",
         "status code is 422:", "No API named 'x' found", "Exception: ", "\n", "\u2028", " "]
    )
).map("".join)  # fmt: skip
FOUR = ("appworld", "alfworld", "webshop", "bfcl")

PRESS, DONE = Step("", "", "press red", calls=("press",)), Step("", "", "done", calls=("done",))
WRONG = Step("", "", "press pink", error_kind="no_such_button")

TOY = [
    ("invalid_tool_call", [WRONG]),
    ("invalid_tool_call", [PRESS, WRONG, DONE]),
    ("invalid_tool_call", [WRONG, WRONG, DONE]),
    ("missing_tool_call", [DONE]),
    ("missing_tool_call", [PRESS]),
    ("missing_tool_call", [PRESS] * 8),
    ("argument_mismatch", [PRESS, DONE]),
    ("argument_mismatch", [PRESS, PRESS, DONE]),
    ("argument_mismatch", [PRESS] * 3 + [DONE]),
]


@pytest.mark.parametrize(
    ("label", "steps"),
    TOY,
    ids=lambda value: value if isinstance(value, str) else ", ".join(one.action for one in value),
)
def test_a_toy_episode_gets_the_expected_label(label: str, steps: list[Step]) -> None:
    assert label_of("toy", episode(steps, end=EndReason.MAX_STEPS)) == label
    assert label_of("toy", episode(steps, success=True)) == "pass"


@pytest.mark.parametrize(
    "end", [EndReason.TIME_LIMIT, EndReason.CONTEXT_OVERFLOW, EndReason.MAX_TOKENS]
)
def test_an_episode_without_actions_is_an_empty_turn(end: EndReason) -> None:
    assert label_of("toy", episode(end=end)) == "empty_turn_model_response"


def test_a_benchmark_without_a_diagnosis_is_refused() -> None:
    class Mute:
        name = "mute"

    with pytest.raises(ConfigError, match="mute cannot diagnose failed episodes"):
        require_diagnosable(Mute())  # type: ignore[arg-type]


def test_holding_out_scenarios_does_not_change_the_diagnosis() -> None:
    done = episode([PRESS, WRONG])
    diagnosis = require_diagnosable(benchmark_of("toy", 0.5)).diagnose(done)
    assert diagnosis == require_diagnosable(get_benchmark("toy")).diagnose(done)


def test_a_successful_episode_has_no_failure_modes() -> None:
    labels = [TurnLabel.PASS, TurnLabel.SPURIOUS_TOOL_CALL]
    diagnosis = diagnosis_of(labels, success=True, modes=["spurious_tool_call"])
    assert diagnosis == Diagnosis(("pass", "spurious_tool_call"))


def test_each_kind_of_failure_is_listed_once_in_order_of_occurrence() -> None:
    labels = [TurnLabel.SPURIOUS_TOOL_CALL, TurnLabel.EMPTY_TURN, TurnLabel.NOT_REACHED]
    failures = failures_in([*labels[:1], *labels])
    assert failures == ("spurious_tool_call", "empty_turn_model_response")


@pytest.mark.parametrize(
    "turns",
    [None, 3, "passed", {"reached": True}, [3], [{"reached": True}], [{"who": "somebody"}], [[]]],
    ids=repr,
)
def test_a_malformed_report_gives_no_turn_facts(turns: Any) -> None:
    assert facts_of({"turns": turns}) == ()
    assert facts_of({}) == ()


@given(st.lists(st.builds(TurnFacts, st.booleans(), st.booleans(), st.integers(0, 3))))
def test_turn_facts_survive_a_round_trip_through_a_report(facts: list[TurnFacts]) -> None:
    report = {"turns": [turn._asdict() for turn in facts]}
    assert facts_of(episode(report=report).report) == tuple(facts)
    assert partial_scores(report) == {}  # nothing of it is shown of a held-out task
    assert all(turn_label(turn) for turn in facts)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
steps = st.builds(
    Step,
    observation=TEXTS,
    shown=st.just(""),
    action=TEXTS,
    calls=st.lists(st.sampled_from(["spotify.login", "supervisor.complete_task"])).map(tuple),
    error_kind=st.sampled_from(["", "exception", "syntax", "timeout", "not_admissible"]),
    extras=st.dictionaries(st.just("alfworld.goal_conditions"), json_values),
)


@pytest.mark.parametrize("benchmark", FOUR)
@given(
    done=st.builds(
        episode,
        st.lists(steps, max_size=4),
        success=st.booleans(),
        report=st.dictionaries(KEYS, json_values),
        end=st.sampled_from([EndReason.FAILED, EndReason.MAX_STEPS, EndReason.MAX_TOKENS]),
        last=TEXTS,
    )
)
def test_any_episode_gets_valid_labels(benchmark: str, done: Trajectory) -> None:
    diagnosis = require_diagnosable(get_benchmark(benchmark)).diagnose(done)
    assert set(diagnosis.turns) <= set(TurnLabel)
    check_modes(benchmark, diagnosis.modes)
    assert not (done.success and diagnosis.modes)
    if benchmark != "bfcl":
        assert len(diagnosis.turns) <= 1
        if done.success:
            assert diagnosis.turns == ("pass",)
