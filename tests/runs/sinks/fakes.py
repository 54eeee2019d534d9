"""Sinks of one's own, as "module:object" names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.runs.sinks import SinkArm

MADE: list[Kept] = []


class Kept:
    """Keeps what it is given, in this process."""

    def __init__(self, arm: SinkArm) -> None:
        self.arm, self.closed = arm, 0
        self.points: list[tuple[int, dict[str, float]]] = []
        MADE.append(self)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.points.append((step, dict(numbers)))

    def close(self) -> None:
        self.closed += 1


class Breaks(Kept):
    """Is there no more at the second step."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        if step >= 2:
            raise ConnectionError("the dashboard is away")
        super().log(numbers, step)


def never(arm: SinkArm) -> Any:
    raise RuntimeError("nobody is logged in")


no_sink = 3
