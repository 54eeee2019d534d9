"""Demonstrations: what people did in training tasks, in a file that a warm-up imitates.

The file is a list of tasks, which samplers and ``coevo tasks import`` read as any other, with what
was done in the place of each reference. Only training tasks ever stand in one.
"""

from __future__ import annotations

from pathlib import Path

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError, SplitLeakError
from coevo_gym.core.task import Split, Task
from coevo_gym.core.task_file import read_tasks
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.pool.pool import require_trainable
from coevo_gym.run.tasks.review import timestamp
from coevo_gym.store.folder import locked, storing, write_atomic

DEMONSTRATION = "demonstration"
"""The kind of provenance of a task whose solution somebody has demonstrated."""


def keep_demonstration(
    path: Path, task: Task, trajectory: Trajectory, benchmark: Benchmark, *, by: str = "person"
) -> Task:
    """Add an episode to a file of demonstrations; it takes the place of one of the same task.

    Args:
        path: the file; made if it is not there.
        task: what was done in the episode.
        trajectory: the episode.
        benchmark: knows which tasks are not to be learned from.
        by: who has played.

    Returns:
        The task as it stands in the file, with what was done as its solution.

    Raises:
        SplitLeakError: if the task is not a training task, or a copy of one that is none.
        ConfigError: if the episode is of another task, or has not solved its own.
        TaskError: if there is a file already that holds something else.
        StoreError: if it cannot be written.
    """
    refusal = why_not(task, trajectory)
    if refusal and task.split is not Split.TRAIN:
        raise SplitLeakError(refusal)
    if refusal:
        raise ConfigError(refusal)
    _check(task, benchmark, "keep a demonstration of")
    made = {"kind": DEMONSTRATION, "by": by, "at": timestamp()}
    provenance = {**task.provenance, **made}
    kept = task.model_copy(update={"solution": trajectory.actions, "provenance": provenance})
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        before = read_tasks(path) if path.is_file() else ()
        tasks = [*(other for other in before if other.id != task.id), kept]
        write_atomic(path, b"".join(task.to_json().encode() + b"\n" for task in tasks))
    return kept


def why_not(task: Task, trajectory: Trajectory | None) -> str:
    """Why an episode cannot be kept as a demonstration; "" if it can.

    Args:
        task: what was done in it.
        trajectory: it, as a training record; None if there is none.
    """
    if task.split is not Split.TRAIN or not isinstance(trajectory, Trajectory):
        return (
            f"{task.name} is a {task.split} task. Episodes of validation and test tasks are only "
            "counted: they never become demonstrations."
        )
    if trajectory.task_id != task.id:
        return f"The episode is not one of {task.name}."
    if not trajectory.success:
        return "Only an episode that has solved its task can be a demonstration."
    return ""


def read_demonstrations(path: Path, benchmark: Benchmark) -> tuple[Task, ...]:
    """The tasks of a file, each with what was done as its solution.

    Args:
        path: the file.
        benchmark: what is practised; it knows which tasks are not to be learned from.

    Raises:
        TaskError: if there is no such file, or a line of it is no task that can be imitated here.
        SplitLeakError: if one is not a training task here.
    """
    found = read_tasks(path)
    for task in found:
        if task.benchmark != benchmark.name:
            raise ConfigError(
                f"{path} holds {task.name}, a task of {task.benchmark}; this run is of "
                f"{benchmark.name}."
            )
        if not task.solution:
            raise ConfigError(f"{path} holds {task.name} without a solution to imitate.")
        _check(task, benchmark, "imitate")
    return found


def _check(task: Task, benchmark: Benchmark, action: str) -> None:
    require_trainable(task.require_asked(action), action, benchmark)
