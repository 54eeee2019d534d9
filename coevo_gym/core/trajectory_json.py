"""Trajectories as JSON, including decisions, so that an incomplete group survives a restart."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from coevo_gym.core.task import FrozenDict, freeze
from coevo_gym.core.trajectory import ChoiceDecision, EvalTrajectory, Step, Trajectory


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Trajectory]:
    return TypeAdapter(Trajectory)


@lru_cache(maxsize=1)
def _eval_adapter() -> TypeAdapter[EvalTrajectory]:
    return TypeAdapter(EvalTrajectory)


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Convert a trajectory to a JSON object.

    The info of a choice's history is left out: it grows with the square of the steps, and a policy
    that chooses among candidates never reads earlier info.
    """
    steps = tuple(map(_without_old_info, trajectory.steps))
    data: dict[str, Any] = _adapter().dump_python(replace(trajectory, steps=steps), mode="json")
    return data


def trajectory_from_json(data: dict[str, Any]) -> Trajectory:
    """Invert :func:`trajectory_to_json`; arrays in free-form JSON become tuples."""
    loaded = _adapter().validate_python(data)
    steps = tuple(_frozen(step) for step in loaded.steps)
    return replace(loaded, steps=steps, report=freeze(loaded.report))


def eval_trajectory_to_json(trajectory: EvalTrajectory) -> dict[str, Any]:
    """Convert the record of an evaluation episode to a JSON object, without decisions."""
    steps = tuple(replace(step, decision=None) for step in trajectory.steps)
    data: dict[str, Any] = _eval_adapter().dump_python(
        replace(trajectory, steps=steps), mode="json"
    )
    return data


def eval_trajectory_from_json(data: dict[str, Any]) -> EvalTrajectory:
    """Invert :func:`eval_trajectory_to_json`."""
    loaded = _eval_adapter().validate_python(data)
    steps = tuple(_frozen(step) for step in loaded.steps)
    return replace(loaded, steps=steps, report=freeze(loaded.report))


def _without_old_info(step: Step) -> Step:
    if not isinstance(step.decision, ChoiceDecision):
        return step
    view = step.decision.context
    history = tuple(turn._replace(info=FrozenDict()) for turn in view.history)
    return replace(step, decision=replace(step.decision, context=replace(view, history=history)))


def _frozen(step: Step) -> Step:
    decision = step.decision
    if isinstance(decision, ChoiceDecision):
        view = replace(decision.context, info=freeze(decision.context.info))
        decision = replace(decision, context=view)
    return replace(step, decision=decision, extras=freeze(step.extras))
