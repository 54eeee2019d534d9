"""Grades in words, whoever has graded."""

from __future__ import annotations

from typing import Any

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Split, freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory
from coevo_gym.envs.webshop.world import WebShopVerifier
from coevo_gym.view.grade import GradeCheck, grade_of, why_failed


@pytest.mark.parametrize(
    ("report", "checks"),
    [
        ({}, ()),
        (
            {
                "tests": [
                    {"requirement": "a", "label": "x", "passed": False},
                    {"name": "b", "passed": True},
                ]
            },
            (GradeCheck("a", False), GradeCheck("b", True)),
        ),
        (
            {"verdicts": ["passed", "unchecked", "instance_state_mismatch", "not_reached"]},
            (
                GradeCheck("turn 1", True, "passed"),
                GradeCheck("turn 2", None, "unchecked"),
                GradeCheck("turn 3", False, "instance state mismatch"),
                GradeCheck("turn 4", None, "not reached"),
            ),
        ),
        ({"label": "pass", "mismatches": []}, ()),
        ({"mismatches": ["Files.root"]}, (GradeCheck("state that differs", None, "Files.root"),)),
        (
            {"webshop.r_type": 0.5, "webshop.r_option": -1.0},
            (
                GradeCheck("kind of product", False, "only similar"),
                GradeCheck("options", None, "none asked"),
            ),
        ),
        (
            {"warm_enough": True, "why": "it was heated"},
            (GradeCheck("warm enough", True), GradeCheck("why", None, "it was heated")),
        ),
        ({"tests": ["odd", 3]}, (GradeCheck("odd", None), GradeCheck("3", None))),
        ({"turns": [{"reached": True, "reference": False}]}, ()),
        ({"turns": ["slow"]}, (GradeCheck("turns", None, "slow"),)),
        ({"parts": {"a": 1, "b": [2, 3]}}, (GradeCheck("parts", None, "a: 1, b: 2, 3"),)),
    ],
)
def test_the_checks_of_a_grade_are_read_from_the_report(
    report: dict[str, Any], checks: tuple[GradeCheck, ...]
) -> None:
    record = EvalTrajectory(
        task_id="t",
        steps=(),
        score=0.5,
        success=False,
        end_reason=EndReason.FAILED,
        report=freeze(report),
    )
    grade = grade_of(record)
    assert grade.checks == checks
    assert (grade.score, grade.reward, grade.end_reason) == (0.5, 0.0, "failed")


SHOP = {
    "webshop.r_type": 1.0,
    "webshop.r_att": 1.0,
    "webshop.r_option": 0.5,
    "webshop.r_price": 1.0,
}
GOAL = WebShopVerifier(asin="B1", attributes=("soft",), options=(("size", "9"), ("color", "red")))


@pytest.mark.parametrize(
    ("report", "end", "why"),
    [
        (SHOP, "failed", "1 of 2 options right"),
        ({**SHOP, "webshop.r_price": 0.0}, "failed", "1 of 2 options right, price too high"),
        ({}, "max_steps", "no steps were left"),
        ({}, "failed", ""),
        ({"verdicts": ["passed", "instance_state_mismatch"]}, "failed",
         "turn 2 instance state mismatch"),
        ({"tests": [{"name": f"test {n}", "passed": n == 0} for n in range(5)]}, "failed",
         "4 of 5 checks failed, first: test 1"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_given_in_words(
    report: dict[str, Any], end: str, why: str
) -> None:
    task = get_benchmark("webshop").tasks(Split.TRAIN)[0].model_copy(update={"verifier": GOAL})
    assert why_failed(False, end, report, task) == why
    assert why_failed(True, end, report, task) == ""


def test_the_failure_reason_without_a_task_gives_no_number_of_requirements() -> None:
    assert why_failed(False, "failed", SHOP, None) == "options 50 % right"
