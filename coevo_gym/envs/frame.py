"""What passes between an engine, the env around it and the grader: frames, info, grades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from coevo_gym.core.task import FrozenDict


class Info(TypedDict):
    """The keys of every env's info; a benchmark adds its own under its name as prefix.

    ``score`` is -1.0 and ``end_reason`` "" until the episode is over.
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
"""Info keys that no policy is shown: an id is a hash of the verifier too."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What an engine shows after a reset or an action.

    Attributes:
        observation: text for the agent.
        done: the task's own end was reached.
        cut: a limit of the benchmark's own protocol ended the episode.
        valid: whether the action had an effect.
        error_kind: why it had none, as a short word; "".
        admissible: actions known to be possible now; () where they cannot be listed.
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
    """A finished episode's outcome.

    Attributes:
        score: the benchmark's own score, in [0, 1].
        success: the binary outcome.
        parts: values of the benchmark's own info keys about the score.
        report: the grader's JSON for diagnosers; never shown to a policy.
    """

    score: float
    success: bool
    parts: Mapping[str, Any] = FrozenDict()
    report: Mapping[str, Any] = FrozenDict()
