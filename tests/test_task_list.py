"""Lists of tasks say what they are."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import coevo_gym
from coevo_gym.core.task_file import TaskList


@pytest.mark.parametrize("benchmark", ["webshop", "bfcl", "alfworld"])
def test_the_repr_of_a_task_list_gives_size_split_and_names(benchmark: str) -> None:
    tasks = coevo_gym.tasks(benchmark, "val")
    expected = f"<{len(tasks)} val tasks of {benchmark}, from {tasks[0].name} to {tasks[-1].name}>"
    assert repr(tasks) == expected
    assert repr(tasks[:1]) == f"<1 val task of {benchmark}: {tasks[0].name}>"
    assert repr(tasks[:0]) == "<no tasks>"
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_a_task_list_equals_the_tuple_of_its_tasks() -> None:
    tasks = coevo_gym.tasks("bfcl", "val")
    assert isinstance(tasks, TaskList)
    assert tasks == tuple(tasks)
    assert tasks[3:5] == tuple(tasks)[3:5]


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    code = "import coevo_gym; print(*dir(coevo_gym))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert set(done.stdout.split()) == {*coevo_gym.__all__, "__version__"}
