"""Plain-language descriptions of episode grades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.diagnosis import facts_of
from coevo_gym.envs.webshop.world import WebShopVerifier


class GradeCheck(NamedTuple):
    """A single check performed by the grader.

    Attributes:
        name: name of the check.
        passed: True or False; None for a number, or if the check did not run.
        said: the grader's remark, or "".
    """

    name: str
    passed: bool | None
    said: str = ""

    def __str__(self) -> str:
        """Return the check as a phrase, such as "1 of 2 options right" or "price too high"."""
        if self.said.endswith(" right") and " of " in self.said:
            return f"{self.said.removesuffix('right')}{self.name} right"
        return f"{self.name} {self.said}".strip()


class GradeInWords(NamedTuple):
    """An episode's outcome, and the grader's checks that explain it.

    Attributes:
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        reward: reward of the last step.
        end_reason: why the episode ended.
        steps: number of steps taken.
        checks: checks by the grader, in its order.
    """

    success: bool
    score: float
    reward: float
    end_reason: str
    steps: int
    checks: tuple[GradeCheck, ...]


def grade_of(record: EvalTrajectory, task: Task | None = None) -> GradeInWords:
    """Return the grade of a finished episode, for the user who played it."""
    return GradeInWords(
        success=record.success,
        score=record.score,
        reward=record.steps[-1].reward if record.steps else 0.0,
        end_reason=str(record.end_reason),
        steps=len(record.steps),
        checks=tuple(_parse_checks(record.report, task)),
    )


def why_failed(success: bool, end_reason: str, report: Mapping[str, Any], task: Task | None) -> str:
    """Describe briefly why an episode failed. Return "" if it succeeded or the cause is unknown.

    Args:
        success: the binary outcome.
        end_reason: why the episode ended.
        report: the part of the grader's report that may be shown.
        task: the task, whose verifier may be shown; None if the verifier is withheld.

    Example:
        >>> report = {"webshop.r_option": 0.5, "webshop.r_price": 0.0}
        >>> why_failed(False, "failed", report, None)
        'options 50 % right, price too high'
    """
    if success:
        return ""
    checks = tuple(_parse_checks(report, task))
    failed = [str(check) for check in checks if check.passed is False]
    if len(failed) > _FEW:
        judged = sum(check.passed is not None for check in checks)
        return f"{len(failed)} of {judged} checks failed, first: {failed[0]}"
    return ", ".join(failed) or _ENDS.get(end_reason, "")


_FEW = 3
_ENDS = {
    "max_steps": "no steps were left",
    "time_limit": "no time was left",
    "context_overflow": "the context was full",
    "refused": "a content filter rejected the prompt",
    "agent_done": "the agent gave up",
}
_TURNS = {"passed": True, "unchecked": None, "not_reached": None}


def _parse_checks(report: Mapping[str, Any], task: Task | None) -> Iterator[GradeCheck]:
    """Yield the checks in a grader's report.

    Lists of ``tests`` (with name and outcome), lists of ``verdicts`` of turns, and the parts of
    WebShop's score are parsed. Other details about turns are for diagnosers and are omitted. All
    other values are returned under their own names.
    """
    sizes = _count_webshop_requirements(task)
    for name, value in report.items():
        is_list = isinstance(value, (list, tuple))
        if name == "tests" and is_list:
            yield from (_check_from_test(test) for test in value)
        elif name == "verdicts" and is_list:
            for number, verdict in enumerate(map(str, value), start=1):
                yield GradeCheck(f"turn {number}", _TURNS.get(verdict, False), _to_words(verdict))
        elif name == "turns" and facts_of(report):
            continue
        elif isinstance(value, bool):
            yield GradeCheck(_to_words(name), value)
        elif name in _SHARES and isinstance(value, (int, float)):
            yield GradeCheck(_to_words(name), *_judge_webshop_part(name, value, sizes.get(name, 1)))
        elif isinstance(value, (int, float)):
            yield GradeCheck(_to_words(name), None, "none asked" if value < 0 else f"{value:g}")
        elif value and value != "pass":
            yield GradeCheck(_to_words(name), None, _format_value(value))


def _count_webshop_requirements(task: Task | None) -> Mapping[str, int]:
    """Count the attributes and options that a WebShop task requires; return {} for other tasks."""
    verifier = task.verifier if task else None
    if not isinstance(verifier, WebShopVerifier):
        return {}
    return {"webshop.r_att": len(verifier.attributes), "webshop.r_option": len(verifier.options)}


def _judge_webshop_part(name: str, value: float, size: int) -> tuple[bool | None, str]:
    """Return whether a part of WebShop's score passed, and a remark such as "2 of 3 right".

    Instead of True or False, the first value is None if the task asks for no such part.
    """
    if value < 0:
        return None, "none asked"
    if size > 1:
        return value >= 1, f"{round(value * size)} of {size} right"
    if 0 < value < 1:
        return False, "only similar" if name == "webshop.r_type" else f"{100 * value:.0f} % right"
    return value >= 1, "right" if value else _SHARES[name]


def _check_from_test(test: Any) -> GradeCheck:
    if not isinstance(test, Mapping):
        return GradeCheck(_format_value(test), None)
    name, passed = test.get("name", test.get("requirement", "")), test.get("passed")
    return GradeCheck(
        str(name), passed if isinstance(passed, bool) else None, str(test.get("why", ""))
    )


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_format_value(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(
            f"{_to_words(str(key))}: {_format_value(item)}" for key, item in value.items()
        )
    return _to_words(value) if isinstance(value, str) else str(value)


def _to_words(name: str) -> str:
    """Convert an identifier to words, leaving other text unchanged.

    Example:
        >>> _to_words("webshop.r_type"), _to_words("instance_state_mismatch")
        ('kind of product', 'instance state mismatch')
    """
    known = _WORDS.get(name)
    if known is not None:
        return known
    return name.replace("_", " ") if name.islower() and " " not in name else name


_SHARES = {
    "webshop.r_type": "wrong",
    "webshop.r_att": "wrong",
    "webshop.r_option": "wrong",
    "webshop.r_price": "too high",
}
"""Remarks for parts of WebShop's score that are 0."""
_WORDS = {
    "webshop.r_type": "kind of product",
    "webshop.r_att": "attributes",
    "webshop.r_option": "options",
    "webshop.r_price": "price",
    "label": "what went wrong",
    "mismatches": "state that differs",
}
