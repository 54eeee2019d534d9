"""Trajectories as JSON, decisions and all, so that a half-finished group survives a restart."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from coevo_gym.task import freeze
from coevo_gym.trajectory import ChoiceDecision, Step, Trajectory


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Trajectory]:
    return TypeAdapter(Trajectory)


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as a JSON object."""
    data: dict[str, Any] = _adapter().dump_python(trajectory, mode="json")
    return data


def trajectory_from_json(data: dict[str, Any]) -> Trajectory:
    """Inverse of :func:`trajectory_to_json`; arrays in free-form JSON come back as tuples."""
    loaded = _adapter().validate_python(data)
    steps = tuple(_frozen(step) for step in loaded.steps)
    return replace(loaded, steps=steps, report=freeze(loaded.report))


def _frozen(step: Step) -> Step:
    decision = step.decision
    if isinstance(decision, ChoiceDecision):
        view = replace(decision.context, info=freeze(decision.context.info))
        decision = replace(decision, context=view)
    return replace(step, decision=decision, extras=freeze(step.extras))
