"""Notes of foresight store the predicted texts for readers."""

from __future__ import annotations

import pytest

from coevo_gym.core.notes import EXPECTED
from coevo_gym.methods.role_agent.study import Foresight, _prediction_evidence
from tests.methods.test_role_agent import Says, group, went


def test_notes_store_wrong_predictions_and_mark_right_ones() -> None:
    study = Foresight(Says([["b", "x" * 2_500], [" b ", ""], ["", " "]], horizon=2))
    notes = study.examine([group(went("a", "b", "c", "d"))]).notes
    assert [note.evidence.get(EXPECTED) for note in notes] == [
        (None, "x" * 300),
        ("b", ""),
        None,  # nothing was predicted
    ]


@pytest.mark.parametrize(
    ("predicted", "came", "expected"),
    [
        (["a", "b", "c"], ["a", "b", "c"], (None, None)),
        (["a"], ["a", "b"], (None,)),
        (["", "b"], ["a"], ("", "b")),
        ([], ["a"], None),
        ([" "], [" "], None),
    ],
)
def test_predictions_are_compared_within_a_horizon_of_two(
    predicted: list[str], came: list[str], expected: tuple[str | None, ...] | None
) -> None:
    assert _prediction_evidence(predicted, came, 2).get(EXPECTED) == expected
