"""A check that curricula from a factory function satisfy the curriculum contract."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Curriculum
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory

_STEPS, _GROUPS, _SIZE = 12, 3, 4


def assert_curriculum_contract(
    make: Callable[[], Curriculum], *, benchmark: str = "webshop"
) -> None:
    """Check that a curriculum satisfies the contract of the curriculum interface.

    It must return and accept only training tasks. The same seed and groups must give the same
    draws. After being saved as JSON and restored at any step, it must continue unchanged. A round
    must be applied only once, and metrics must be numbers.

    Args:
        make: function that creates a fresh curriculum with tasks, identical on every call.
        benchmark: name of its tasks' benchmark.

    Raises:
        AssertionError: at the first check that fails.
    """
    whole = _run_steps(make(), range(_STEPS))
    assert whole == _run_steps(make(), range(_STEPS)), "two identical curricula draw differently"
    for cut in (0, 1, _STEPS // 2):
        first, second = make(), make()
        begun = _run_steps(first, range(cut))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = _run_steps(second, range(cut, _STEPS))
        assert begun + rest == whole, f"a curriculum restored after step {cut} draws differently"
    _check_metrics(make())
    _check_rounds(make(), benchmark)
    _check_split(make(), benchmark)


def _run_steps(curriculum: Curriculum, steps: Sequence[int]) -> list[list[str]]:
    """Run a curriculum with seeded outcomes and return the ids of the tasks drawn at each step."""
    batches = []
    for step in steps:
        rng = np.random.default_rng(step)
        tasks = curriculum.next(_GROUPS, rng)
        assert len(tasks) == _GROUPS, f"next({_GROUPS}) returns {len(tasks)} tasks"
        assert all(task.split is Split.TRAIN for task in tasks), "a task is not a training task"
        groups = [_group(task, f"group-{step}-{i}", rng) for i, task in enumerate(tasks)]
        curriculum.record(groups)
        curriculum.note(Notes())
        batches.append([task.id for task in tasks])
    return batches


def _group(task: Task, id: str, rng: Generator) -> Group:
    return Group(
        id, task, _SIZE, tuple(_episode(task, bool(rng.integers(2))) for _ in range(_SIZE))
    )


def _episode(task: Task, success: bool) -> Trajectory:
    return Trajectory(
        task_id=task.id,
        steps=tuple(Step("", "", f"action {i}", calls=("act",)) for i in range(3)),
        score=float(success),
        success=success,
        end_reason=EndReason.SOLVED if success else EndReason.FAILED,
    )


def _check_metrics(curriculum: Curriculum) -> None:
    for _ in range(2):
        for name, value in curriculum.metrics().items():
            assert isinstance(value, float), f"metric {name} is not a float: {value!r}"
            assert not math.isinf(value), f"metric {name} is {value}"
        _run_steps(curriculum, range(3))


def _check_rounds(curriculum: Curriculum, benchmark: str) -> None:
    new = get_benchmark(benchmark).tasks(Split.TRAIN)[-1]
    result = RoundResult(round_id="round-of-the-contract", accepted=(new,))
    curriculum.apply(result)
    once = curriculum.state_dict()
    curriculum.apply(result)
    assert curriculum.state_dict() == once, "a round is applied twice"
    _run_steps(curriculum, range(2))


def _check_split(curriculum: Curriculum, benchmark: str) -> None:
    before = curriculum.state_dict()
    held_out = get_benchmark(benchmark).tasks(Split.TEST)[0]
    for what, use in (
        ("record", lambda: curriculum.record([_group(held_out, "g", np.random.default_rng(0))])),
        ("apply", lambda: curriculum.apply(RoundResult(round_id="r", accepted=(held_out,)))),
    ):
        try:
            use()
        except SplitLeakError:
            assert curriculum.state_dict() == before, f"{what} rejects a test task too late"
        else:
            raise AssertionError(f"{what} accepts a test task")
