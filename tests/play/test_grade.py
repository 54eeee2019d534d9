"""Grades in words, whoever has graded."""

from __future__ import annotations

from typing import Any

import pytest

from coevo_gym.core.task import freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory
from coevo_gym.web.play.grade import Check, grade_of


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
            (Check("a", False), Check("b", True)),
        ),
        (
            {"verdicts": ["passed", "unchecked", "instance_state_mismatch", "not_reached"]},
            (
                Check("turn 1", True, "passed"),
                Check("turn 2", None, "unchecked"),
                Check("turn 3", False, "instance state mismatch"),
                Check("turn 4", None, "not reached"),
            ),
        ),
        ({"label": "pass", "mismatches": []}, ()),
        ({"mismatches": ["Files.root"]}, (Check("state that differs", None, "Files.root"),)),
        (
            {"webshop.r_type": 0.5, "webshop.r_option": -1.0},
            (Check("kind of product", None, "0.5"), Check("options", None, "none asked")),
        ),
        (
            {"warm_enough": True, "why": "it was heated"},
            (Check("warm enough", True), Check("why", None, "it was heated")),
        ),
        ({"tests": ["odd", 3]}, (Check("odd", None), Check("3", None))),
        ({"turns": [{"reached": True, "reference": False}]}, ()),
        ({"turns": ["slow"]}, (Check("turns", None, "slow"),)),
        ({"parts": {"a": 1, "b": [2, 3]}}, (Check("parts", None, "a: 1, b: 2, 3"),)),
    ],
)
def test_reports(report: dict[str, Any], checks: tuple[Check, ...]) -> None:
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
    assert grade.failed == tuple(check for check in checks if check.passed is False)
    assert (grade.score, grade.reward, grade.end_reason) == (0.5, 0.0, "failed")
