"""How episodes are judged."""

from __future__ import annotations

from typing import Any

import pytest

from coevo_gym.envs.appworld.engine.engine_session import TaskTest as Check
from coevo_gym.envs.appworld.judge import EARNED, KEPT, JudgedTests, grade_changes, normalise_answer
from coevo_gym.envs.appworld.world import AppWorldVerifier

LIKE = {"spotify.SongLike": {"added": [{"song_id": 3}], "updated": [], "removed": []}}
NOTE = {"simple_note.Note": {"added": [], "updated": [], "removed": [{"title": "a"}]}}


@pytest.mark.parametrize(
    ("earned", "intact", "score", "success"),
    [
        ([True, True], [True], 1.0, True),
        ([True, False], [True], 0.5, False),
        ([True, True], [False], 0.0, False),
        ([False, False], [True, True], 0.0, False),
        ([], [True], 0.0, True),
        ([], [], 0.0, False),
    ],
)
def test_the_score_counts_only_tests_that_fail_without_work(
    earned: list[bool], intact: list[bool], score: float, success: bool
) -> None:
    tests = [Check("", EARNED, passed) for passed in earned] + [Check("", KEPT, p) for p in intact]
    verdict = JudgedTests(tuple(tests))
    assert (verdict.score, verdict.success) == (score, success)
    assert verdict.n_passed == sum(earned) + sum(intact)


@pytest.mark.parametrize(
    ("changes", "answer", "completed", "score", "success"),
    [
        (LIKE, 3, True, 1.0, True),
        (LIKE, " 3.0", True, 1.0, True),
        (LIKE, None, True, 0.5, False),
        (LIKE, 4, True, 0.5, False),
        ({}, 3, True, 0.5, False),
        ({}, None, True, 0.0, False),
        ({**LIKE, **NOTE}, 3, True, 0.0, False),
        (LIKE, 3, False, 0.0, False),
        ({"spotify.SongLike": NOTE["simple_note.Note"]}, 3, True, 0.5, False),
    ],
)
def test_changes_and_answer_must_match_the_verifier(
    changes: dict[str, Any], answer: Any, completed: bool, score: float, success: bool
) -> None:
    verifier = AppWorldVerifier(changes=LIKE, answer="3")
    verdict = grade_changes(verifier, changes, answer, completed=completed)
    assert (verdict.score, verdict.success) == (score, success)


def test_an_answer_to_a_task_without_a_question_is_wrong() -> None:
    verifier = AppWorldVerifier(changes=LIKE)
    assert grade_changes(verifier, LIKE, None, completed=True).success
    assert not grade_changes(verifier, LIKE, "all done", completed=True).success


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Low Tide ", "low tide"),
        (5, "5"),
        (5.0, 5),
        ("12.50", 12.5),
        (["A", 1], ["a", "1"]),
        ("Nan", "nan"),
        ([10**400], ["1" + "0" * 400]),
    ],
)
def test_equivalent_answers_normalise_to_the_same_value(one: Any, other: Any) -> None:
    assert normalise_answer(one) == normalise_answer(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(None, "none"), (None, 0), (True, "true"), ([1, 2], [2, 1]), ("a b", "ab"), ("1e999", "inf")],
)
def test_different_answers_normalise_to_different_values(one: Any, other: Any) -> None:
    assert normalise_answer(one) != normalise_answer(other)
