"""The verdict on an episode, based on the task's own tests or on the expected changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, nan
from typing import Any, NamedTuple

from coevo_gym.core.task import thaw
from coevo_gym.envs.appworld.engine.engine_session import Diff, TaskTest, WorldSession
from coevo_gym.envs.appworld.world import AppWorldVerifier

EARNED = "no_op_fail"
KEPT = "no_op_pass"
COMPLETED = "the task is completed"


class JudgedTests(NamedTuple):
    """The results of all tests that were run on an episode."""

    tests: tuple[TaskTest, ...]

    @property
    def n_passed(self) -> int:
        """The number of tests that pass."""
        return sum(test.passed for test in self.tests)

    @property
    def success(self) -> bool:
        """Return True if there are tests and all of them pass."""
        return bool(self.tests) and self.n_passed == len(self.tests)

    @property
    def score(self) -> float:
        """The pass rate on the tests that an idle agent fails. It is 0 if any other test fails."""
        if any(test.label == KEPT and not test.passed for test in self.tests):
            return 0.0
        earned = [test.passed for test in self.tests if test.label == EARNED]
        return sum(earned) / len(earned) if earned else 0.0


def grade(world: WorldSession, verifier: AppWorldVerifier, diff: Diff | None = None) -> JudgedTests:
    """Grade the current state of a world. Pass its changes as ``diff`` if they are known."""
    if verifier.changes is None:
        return JudgedTests(world.grade())
    diff = diff or world.diff()
    return grade_changes(verifier, diff.changes, diff.answer, completed=bool(diff.status))


def grade_changes(
    verifier: AppWorldVerifier, changes: Mapping[str, Any], answer: Any, *, completed: bool
) -> JudgedTests:
    """Compare the changes and the answer of an episode with the expected result."""
    wanted = thaw(verifier.changes or {})
    tests = [
        TaskTest(f"{model} has changed as asked", EARNED, changes.get(model) == wanted[model])
        for model in sorted(wanted)
    ]
    others = sorted(changes.keys() - wanted.keys())
    tests.append(TaskTest("nothing else has changed", KEPT, not others))
    tests.append(TaskTest(COMPLETED, KEPT, completed))
    expected = json.loads(verifier.answer) if verifier.answer else None
    label = EARNED if expected is not None else KEPT
    tests.append(
        TaskTest(
            "the answer is right", label, normalise_answer(answer) == normalise_answer(expected)
        )
    )
    return JudgedTests(tuple(tests))


def normalise_answer(answer: Any) -> Any:
    """Normalise the letter case, surrounding whitespace and number formats of an answer.

    Example:
        >>> [normalise_answer(answer) for answer in (" Low Tide", "12.50", 12.5, [3, "A"])]
        ['low tide', 12.5, 12.5, [3.0, 'a']]
    """
    if isinstance(answer, list):
        return [normalise_answer(item) for item in answer]
    if answer is None or isinstance(answer, bool):
        return answer
    try:
        number = float(answer)
    except (TypeError, ValueError, OverflowError):
        number = nan
    return number if isfinite(number) else str(answer).strip().casefold()
