"""Made-up episodes, to be labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step, Trajectory
from coevo_gym.envs.diagnosis import require_diagnosable


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


def modes_of(benchmark: str, done: Trajectory) -> tuple[str, ...]:
    """The failure modes of an episode, with what must hold of all of them."""
    modes = require_diagnosable(get_benchmark(benchmark)).diagnose(done).modes
    check_modes(benchmark, modes)
    return modes


def check_modes(benchmark: str, modes: Sequence[str]) -> None:
    """Each mode is told once, and is in the benchmark's list."""
    all_modes = require_diagnosable(get_benchmark(benchmark)).modes
    assert len(set(all_modes)) == len(all_modes)
    assert len(set(modes)) == len(modes)
    assert set(modes) <= set(all_modes)


def label_of(benchmark: str, done: Trajectory) -> str:
    """The label of an episode of one turn, with what must hold of every diagnosis."""
    diagnosis = require_diagnosable(get_benchmark(benchmark)).diagnose(done)
    (label,) = diagnosis.turns
    check_modes(benchmark, diagnosis.modes)
    assert bool(diagnosis.modes) is not done.success
    evaluated = EvalTrajectory(
        **{
            name: getattr(done, name)
            for name in ("task_id", "steps", "score", "success", "end_reason", "report")
        },
        last_observation=done.last_observation,
    )
    assert require_diagnosable(get_benchmark(benchmark)).diagnose(evaluated) == diagnosis
    return label
