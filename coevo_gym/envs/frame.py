"""Data types passed between an engine, its env and the grader: frames, info and grades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from coevo_gym.core.task import FrozenDict


class Info(TypedDict):
    """The info keys that every env has. Benchmarks add keys that begin with their name.

    ``score`` is -1.0 and ``end_reason`` is "" until the episode is over.
    """

    task_id: str
    step: int
    success: bool
    score: float
    end_reason: str
    action_valid: bool
    error_kind: str
    admissible: tuple[str, ...]


PRIVATE_INFO = frozenset({"task_id", "success", "score", "end_reason"})
"""Info keys hidden from policies; task ids are hidden because they are verifier hashes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The output of an engine after a reset or an action.

    Attributes:
        observation: text for the agent.
        done: True if the task itself has ended.
        cut: True if a limit of the benchmark's own protocol ended the episode.
        valid: True if the action had an effect.
        error_kind: a word for the reason why the action had no effect, or "".
        admissible: actions that are possible now; () if they cannot be listed.
        calls: names of the engine operations that ran.
        extras: values of the benchmark's own info keys.
    """

    observation: str
    done: bool = False
    cut: bool = False
    valid: bool = True
    error_kind: str = ""
    admissible: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    extras: Mapping[str, Any] = FrozenDict()


class Grade(NamedTuple):
    """The outcome of a finished episode.

    Attributes:
        score: the benchmark's own score, in [0, 1].
        success: the binary outcome.
        parts: values of the benchmark's own info keys about the score.
        report: the grader's report as JSON, for diagnosis; never shown to a policy.
    """

    score: float
    success: bool
    parts: Mapping[str, Any] = FrozenDict()
    report: Mapping[str, Any] = FrozenDict()
