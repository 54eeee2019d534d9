"""Conversion of trajectories to and from JSON, so that incomplete groups survive a restart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.task import FrozenDict, freeze
from coevo_gym.core.trajectory import ChoiceDecision, EvalTrajectory, Step, Trajectory

RecordT = TypeVar("RecordT", Trajectory, EvalTrajectory)
WALL_TIMES = ("answer_s", "env_s")
"""Fields of a step that are left out if they are unknown."""
_DIGITS = 6
"""Number of decimal places in stored wall times."""


@cache
def _adapters() -> dict[Any, TypeAdapter[Any]]:
    return {kind: TypeAdapter(kind) for kind in (Trajectory, EvalTrajectory)}


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Convert a trajectory to a JSON object.

    The info in a choice's history is left out, because its size grows with the square of the steps,
    and policies that choose among candidates never read earlier info.
    """
    steps = tuple(map(_without_old_info, trajectory.steps))
    return _dump(replace(trajectory, steps=steps))


def trajectory_from_json(data: dict[str, Any]) -> Trajectory:
    """Restore a trajectory from JSON data. Arrays in free-form JSON become tuples.

    Raises:
        SplitLeakError: if the data is a row of an export of held-out episodes.
    """
    refuse_marked(data.get("notice"), "become a training episode")
    return _load(Trajectory, data)


def eval_trajectory_to_json(trajectory: EvalTrajectory) -> dict[str, Any]:
    """Convert an evaluation episode's record to a JSON object. Decisions are left out."""
    steps = tuple(replace(step, decision=None) for step in trajectory.steps)
    return _dump(replace(trajectory, steps=steps))


def eval_trajectory_from_json(data: dict[str, Any]) -> EvalTrajectory:
    """Restore a record from the output of :func:`eval_trajectory_to_json`."""
    return _load(EvalTrajectory, data)


def _dump(trajectory: RecordT) -> dict[str, Any]:
    data: dict[str, Any] = _adapters()[type(trajectory)].dump_python(trajectory, mode="json")
    if data["transcript"] is None:
        del data["transcript"]
    for step in data["steps"]:
        for name in WALL_TIMES:
            if (seconds := step.pop(name)) is not None:
                step[name] = round(seconds, _DIGITS)
    return data


def _load(kind: type[RecordT], data: dict[str, Any]) -> RecordT:
    loaded: RecordT = _adapters()[kind].validate_python(data)
    steps = tuple(_freeze_step(step) for step in loaded.steps)
    return replace(loaded, steps=steps, report=freeze(loaded.report))


def _without_old_info(step: Step) -> Step:
    if not isinstance(step.decision, ChoiceDecision):
        return step
    view = step.decision.context
    history = tuple(turn._replace(info=FrozenDict()) for turn in view.history)
    return replace(step, decision=replace(step.decision, context=replace(view, history=history)))


def _freeze_step(step: Step) -> Step:
    decision = step.decision
    if isinstance(decision, ChoiceDecision):
        view = replace(decision.context, info=freeze(decision.context.info))
        decision = replace(decision, context=view)
    return replace(step, decision=decision, extras=freeze(step.extras))
