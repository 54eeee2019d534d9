"""Made-up episodes, to be labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step, Trajectory
from coevo_gym.envs.diagnosis import NO_FAILURES, diagnosable


def episode(
    steps: Sequence[Step] = (),
    *,
    success: bool = False,
    report: Mapping[str, Any] | None = None,
    end: EndReason = EndReason.FAILED,
    last: str = "",
) -> Trajectory:
    """A finished training episode."""
    return Trajectory(
        task_id="t",
        steps=tuple(steps),
        score=float(success),
        success=success,
        end_reason=EndReason.SOLVED if success else end,
        report=freeze(report or {}),
        last_observation=last,
    )


def label_of(benchmark: str, done: Trajectory) -> str:
    """The label of an episode of one turn, with what must hold of every diagnosis."""
    found = diagnosable(get_benchmark(benchmark)).diagnose(done)
    (label,) = found.turns
    assert found.modes == (() if label in NO_FAILURES else (label,))
    evaluated = EvalTrajectory(
        **{
            name: getattr(done, name)
            for name in ("task_id", "steps", "score", "success", "end_reason", "report")
        },
        last_observation=done.last_observation,
    )
    assert diagnosable(get_benchmark(benchmark)).diagnose(evaluated) == found
    return label
