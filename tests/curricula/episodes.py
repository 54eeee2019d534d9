"""Hand-made tasks, trajectories and groups of the toy benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.evolution import Signal
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.curricula.growth.signal_growth import SignalGrowth
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from tests.toy import BENCHMARK

TRAIN = BENCHMARK.tasks(Split.TRAIN)
HELD_OUT = (*BENCHMARK.tasks(Split.VAL), *BENCHMARK.tasks(Split.TEST))


def trajectory(
    task: Task = TRAIN[0],
    outcome: float = 1.0,
    calls: Sequence[str] = ("press", "done"),
    **fields: object,
) -> Trajectory:
    """An episode with this score (a success from 1.0) and one step for each call."""
    steps = tuple(Step("", "", f"action {i}", calls=(call,)) for i, call in enumerate(calls))
    end = EndReason.SOLVED if outcome >= 1 else EndReason.FAILED
    known = {"task_id": task.id, "steps": steps, "score": outcome, "end_reason": end}
    return Trajectory(success=outcome >= 1, **{**known, **fields})  # type: ignore[arg-type]


def group(
    outcomes: Sequence[float],
    task: Task = TRAIN[0],
    *,
    size: int | None = None,
    calls: Sequence[str] = ("press", "done"),
    id: str = "group-0",
) -> Group:
    """A group with one trajectory for each outcome."""
    episodes = tuple(trajectory(task, outcome, calls) for outcome in outcomes)
    return Group(id, task, size or len(outcomes), episodes)


class Recorder(PoolCurriculum):
    """A static curriculum that keeps what it is told."""

    def __init__(self, tasks: Sequence[Task] = TRAIN[:10]) -> None:
        super().__init__(tasks, growth=SignalGrowth())
        self.seen: list[Group] = []

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        self.seen += groups
        return super().record(groups)
