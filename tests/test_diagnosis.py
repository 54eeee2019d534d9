"""Labels of turns: the seam, reports that hold none, and the toy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import EndReason, Step
from coevo_gym.envs.diagnosis import (
    Diagnosis,
    TurnFacts,
    TurnLabel,
    diagnosable,
    diagnosis_of,
    facts_of,
    turn_label,
)
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.web.view.safe import shares_of
from tests import toy
from tests.diagnosing import episode, label_of

toy.register()

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


@pytest.mark.parametrize(("label", "steps"), TOY)
def test_labels_of_the_toy(label: str, steps: list[Step]) -> None:
    assert label_of("toy", episode(steps, end=EndReason.MAX_STEPS)) == label
    assert label_of("toy", episode(steps, success=True)) == "pass"


def test_a_benchmark_without_labels_is_explained() -> None:
    class Mute:
        name = "mute"

    with pytest.raises(ConfigError, match="mute cannot say why an episode failed"):
        diagnosable(Mute())  # type: ignore[arg-type]


def test_a_benchmark_with_scenarios_set_aside_labels_as_before() -> None:
    done = episode([PRESS, WRONG])
    found = diagnosable(benchmark_of("toy", 0.5)).diagnose(done)
    assert found == diagnosable(get_benchmark("toy")).diagnose(done)


def test_an_episode_that_succeeds_has_no_mode_of_failure() -> None:
    labels = [TurnLabel.PASS, TurnLabel.SPURIOUS_TOOL_CALL]
    assert diagnosis_of(labels, success=True) == Diagnosis(("pass", "spurious_tool_call"))


def test_each_mode_is_told_once_in_the_order_they_came_about() -> None:
    labels = [TurnLabel.SPURIOUS_TOOL_CALL, TurnLabel.EMPTY_TURN, TurnLabel.NOT_REACHED]
    found = diagnosis_of([*labels[:1], *labels], success=False)
    assert found.modes == ("spurious_tool_call", "empty_turn_model_response")
    assert len(found.turns) == 4


@pytest.mark.parametrize(
    "turns",
    [None, 3, "passed", {"reached": True}, [3], [{"reached": True}], [{"who": "somebody"}], [[]]],
)
def test_a_report_of_another_shape_tells_no_turns(turns: Any) -> None:
    assert facts_of({"turns": turns}) == ()
    assert facts_of({}) == ()


@given(st.lists(st.builds(TurnFacts, st.booleans(), st.booleans(), st.integers(0, 3))))
def test_facts_survive_a_report(facts: list[TurnFacts]) -> None:
    report = {"turns": [turn._asdict() for turn in facts]}
    assert facts_of(episode(report=report).report) == tuple(facts)
    assert shares_of(report) == {}  # nothing of it is shown of a held-out task
    assert all(turn_label(turn) for turn in facts)
