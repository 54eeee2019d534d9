from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.errors import SplitLeakError, TaskError
from coevo_gym.curricula.pool.task_pool import TaskPool
from tests.curricula.episodes import HELD_OUT, TRAIN


def test_a_task_is_added_once_and_its_first_copy_stays() -> None:
    pool = TaskPool()
    copy = TRAIN[0].model_copy(update={"name": "another name", "origin": "evolved"})
    assert pool.extend(TRAIN[:1]) == (TRAIN[0],)
    assert pool.extend([copy]) == ()
    assert pool.extend([TRAIN[1], TRAIN[0], TRAIN[1]]) == (TRAIN[1],)
    assert [task.name for task in pool] == [TRAIN[0].name, TRAIN[1].name]
    assert [task in pool for task in (TRAIN[0], TRAIN[1].id, TRAIN[2])] == [True, True, False]
    assert pool[1] is pool[TRAIN[1].id] is TRAIN[1]


def test_an_unknown_task_raises_an_error_with_its_id() -> None:
    with pytest.raises(TaskError, match="deadbeef"):
        TaskPool()["deadbeef"]


@pytest.mark.parametrize("leak", [HELD_OUT[0], HELD_OUT[-1]])
def test_a_batch_with_a_held_out_task_is_refused_as_a_whole(leak: object) -> None:
    pool = TaskPool(TRAIN[:2])
    with pytest.raises(SplitLeakError, match="Only training tasks"):
        pool.extend([TRAIN[3], leak])  # type: ignore[list-item]
    assert list(pool) == list(TRAIN[:2])
    with pytest.raises(SplitLeakError):
        TaskPool([leak])  # type: ignore[list-item]


@given(st.lists(st.integers(0, 9)))
def test_a_pool_keeps_the_order_of_first_arrival_through_json(order: list[int]) -> None:
    pool, copy = TaskPool(), TaskPool(TRAIN[20:22])
    for index in order:
        pool.extend([TRAIN[index]])
    copy.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert list(copy) == list(pool) == [TRAIN[i] for i in dict.fromkeys(order)]
