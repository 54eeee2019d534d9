"""How an episode was judged, in words for whoever has played it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.diagnosis import facts_of


class Check(NamedTuple):
    """One thing that the grader looked at.

    Attributes:
        name: what.
        passed: whether it holds; None where it is a number, or was not looked at.
        said: the grader's word for it; or "".
    """

    name: str
    passed: bool | None
    said: str = ""


class GradeInWords(NamedTuple):
    """An outcome, and what it is made of.

    Attributes:
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        reward: reward of the last step.
        end_reason: why the episode ended.
        steps: steps that it took.
        checks: what the grader looked at, in its order.
    """

    success: bool
    score: float
    reward: float
    end_reason: str
    steps: int
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if check.passed is False)


def grade_of(record: EvalTrajectory) -> GradeInWords:
    """The grade of a finished episode; only whoever has played it to its end is told."""
    return GradeInWords(
        success=record.success,
        score=record.score,
        reward=record.steps[-1].reward if record.steps else 0.0,
        end_reason=str(record.end_reason),
        steps=len(record.steps),
        checks=tuple(_checks(record.report)),
    )


_TURNS = {"passed": True, "unchecked": None, "not_reached": None}


def _checks(report: Mapping[str, Any]) -> Iterator[Check]:
    """What a grader's report says.

    A list of ``tests`` with name and outcome each, and a list of ``verdicts`` of turns, are read as
    such. What a grader knows of turns beyond that is for diagnosers, and not told. Of all else each
    value is told by its name.
    """
    for name, value in report.items():
        listed = isinstance(value, (list, tuple))
        if name == "tests" and listed:
            yield from (_test(test) for test in value)
        elif name == "verdicts" and listed:
            for number, said in enumerate(map(str, value), start=1):
                yield Check(f"turn {number}", _TURNS.get(said, False), _spaced(said))
        elif name == "turns" and facts_of(report):
            continue
        elif isinstance(value, bool):
            yield Check(_spaced(name), value)
        elif isinstance(value, (int, float)):
            yield Check(_spaced(name), None, "none asked" if value < 0 else f"{value:g}")
        elif value and value != "pass":
            yield Check(_spaced(name), None, _told(value))


def _test(test: Any) -> Check:
    if not isinstance(test, Mapping):
        return Check(_told(test), None)
    name, passed = test.get("name", test.get("requirement", "")), test.get("passed")
    return Check(str(name), passed if isinstance(passed, bool) else None, str(test.get("why", "")))


def _told(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_told(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{_spaced(str(key))}: {_told(item)}" for key, item in value.items())
    return _spaced(value) if isinstance(value, str) else str(value)


def _spaced(name: str) -> str:
    """A key or a code as words; a text stays as it is.

    Example:
        >>> _spaced("webshop.r_type"), _spaced("instance_state_mismatch"), _spaced("GorillaFS.root")
        ('kind of product', 'instance state mismatch', 'GorillaFS.root')
    """
    known = _WORDS.get(name)
    if known is not None:
        return known
    return name.replace("_", " ") if name.islower() and " " not in name else name


_WORDS = {
    "webshop.r_type": "kind of product",
    "webshop.r_att": "attributes",
    "webshop.r_option": "options",
    "webshop.r_price": "price",
    "label": "what went wrong",
    "mismatches": "state that differs",
}
