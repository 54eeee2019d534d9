from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import coevo_gym
from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Context, Draft, Round, RoundResult, Verdict
from coevo_gym.core.task import SCHEMA_VERSION, FrozenDict, Split, Task, UnknownWorld, freeze, thaw
from tests.toy import ToyVerifier, ToyWorld

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)  # fmt: skip


@pytest.fixture
def task() -> Task:
    return coevo_gym.tasks("toy", "train")[0]


def test_the_id_does_not_depend_on_labels(task: Task) -> None:
    other = task.model_copy(
        update={"name": "x", "split": Split.TEST, "solution": (), "provenance": {"a": 1}}
    )
    assert other.id == task.id


@pytest.mark.parametrize(
    "change",
    [
        {"instruction": "Press nothing."},
        {"scenario": "elsewhere"},
        {"world": ToyWorld(buttons=("red",))},
        {"verifier": ToyVerifier(order=("red",))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_id_depends_on_the_content(task: Task, change: dict[str, Any]) -> None:
    assert task.model_copy(update=change).id != task.id


KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "webshop": (
        {
            "scenario": "B000000001",
            "world": {"catalogue": "builtin", "digest": "0123456789abcdef"},
            "verifier": {
                "asin": "B000000001",
                "attributes": ["heavy duty"],
                "options": [["color", "red"]],
                "price_cap": 20.0,
            },
        },
        "fa2327adab51ab8fe691e4b2e57dfad312b2eb555881ef2e72a5ca360ce6e50e",
    ),
    "bfcl": (
        {
            "scenario": "multi_turn_1",
            "world": {
                "config": {"GorillaFileSystem": {"root": {}}},
                "classes": ["GorillaFileSystem"],
                "turns": ["List all."],
            },
            "verifier": {"turns": [["ls()"]]},
        },
        "33fa0151fba3b57a7e3dd66944a4f1b3c3d5c75870df911c56df1a84774029a5",
    ),
    "alfworld": (
        {
            "scenario": "builtin/FloorPlan1",
            "world": {
                "game": "builtin/FloorPlan1/0",
                "digest": "builtin",
                "goal": {"kind": "pick_and_place_simple", "object": "Mug", "receptacle": "Desk"},
            },
            "verifier": {},
        },
        "eab5e6964dba047fd74ea1bb87281e526ef6d671d2530e3c8ec7fbfa68cd4dc1",
    ),
    "appworld": (
        {
            "scenario": "builtin/0000001",
            "world": {"data": "builtin-0123456789ab", "base": "0000001_1"},
            "verifier": {"changes": {"phone": {"added": []}}, "answer": "3"},
        },
        "0a70f3ddcd6d86e45406bfeab16e472f703c2dd5535f694a12a603e06d260bd9",
    ),
    "elsewhere": (
        {"scenario": "s", "world": {"seed": 7}, "verifier": {"answer": [1, 2.5, None]}},
        "d6a632bc8e2d0f895adf751473c08c4fdafab97bc477ec410b8a749342742652",
    ),
}
"""What is hashed in a task of each benchmark, and its id under schema version 1."""


@pytest.mark.parametrize("benchmark", KEPT)
def test_ids_do_not_change_within_a_schema_version(benchmark: str) -> None:
    """Task files and runs that people have hold these ids: a change of what is hashed breaks them.

    If it has to be, ``SCHEMA_VERSION`` goes up, and there is a way to take old files along.
    """
    content, id = KEPT[benchmark]
    data = {"benchmark": benchmark, "split": "train", "instruction": "Do it, Zoë.", **content}
    assert SCHEMA_VERSION == 1
    assert Task.from_json(json.dumps(data)).id == id


def test_a_task_survives_json_and_pickle_round_trips(task: Task) -> None:
    for again in (Task.from_json(task.to_json()), pickle.loads(pickle.dumps(task))):
        assert again == task
        assert again.id == task.id
        assert type(again.world) is ToyWorld
    assert pickle.loads(pickle.dumps(task)).id == task.id


def test_an_evolved_task_without_a_name_is_named_by_its_id(task: Task) -> None:
    assert task.model_copy(update={"name": ""}).name == f"toy/evolved/{task.id[:12]}"


@given(world=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), JSON))
def test_a_task_of_an_unknown_benchmark_keeps_its_json(world: dict[str, Any]) -> None:
    text = coevo_gym.tasks("toy", "train")[0].to_json()
    raw = json.loads(text) | {"benchmark": "nobody-knows", "world": world}
    task = Task.from_json(json.dumps(raw))
    assert type(task.world) is UnknownWorld
    assert json.loads(task.to_json()) == raw


def test_the_id_does_not_depend_on_knowing_the_benchmark(task: Task) -> None:
    raw = json.loads(task.to_json()) | {"benchmark": "nobody-knows"}
    unknown = Task.from_json(json.dumps(raw))
    known = task.model_copy(update={"benchmark": "nobody-knows"})
    assert unknown.id == known.id


def test_a_task_is_immutable(task: Task) -> None:
    with pytest.raises(ValidationError):
        task.instruction = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot be modified"):
        task.model_copy(update={"provenance": {"a": 1}}).provenance["a"] = 2  # type: ignore[index]


def test_infinite_numbers_and_surrogates_are_refused(task: Task) -> None:
    with pytest.raises(ValidationError, match="not a finite number"):
        task.model_copy(update={"provenance": {"a": float("inf")}})
    with pytest.raises(ValidationError):
        task.model_copy(update={"instruction": "\ud800"})


def test_invalid_json_is_a_task_error() -> None:
    with pytest.raises(TaskError, match="not valid task JSON"):
        Task.from_json('{"benchmark": "toy"}')


@given(JSON)
def test_frozen_values_are_hashable_and_thaw_to_the_original(value: Any) -> None:
    frozen = freeze(value)
    hash(frozen)
    assert thaw(frozen) == value
    assert pickle.loads(pickle.dumps(frozen)) == frozen


def test_frozen_dict_refuses_every_change() -> None:
    frozen = FrozenDict(a=1)
    for change in (frozen.clear, frozen.popitem, lambda: frozen.update(b=2)):
        with pytest.raises(TypeError):
            change()
    with pytest.raises(TypeError):
        frozen |= {"b": 2}


def test_contexts_drafts_rounds_and_results_survive_a_json_round_trip(task: Task) -> None:
    context = Context(kind="boundary", task=task, actions=("press red",), summary="s")
    draft = Draft(
        benchmark="toy",
        scenario="s",
        instruction="i",
        world=task.world,
        solution=("a", "b", "c"),
        context_id=context.id,
    )
    again = Draft.model_validate_json(draft.model_dump_json())
    assert again == draft
    assert again.id == draft.id
    order = Round(id="round-1", contexts=(context,), budget=3, seed=1, known=(task,))
    assert Round.model_validate_json(order.model_dump_json()).contexts[0].id == context.id
    verdict = Verdict(draft_id=draft.id, accepted=True, task_id=task.id, draft={"a": [1]})
    result = RoundResult(round_id="round-1", accepted=(task,), verdicts=(verdict,))
    assert RoundResult.model_validate_json(result.model_dump_json()) == result
