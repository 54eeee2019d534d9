"""Tags: what tasks and drafts are about, without starting an engine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark, require_proposable
from coevo_gym.core.evolution import Context
from coevo_gym.core.task import Split, Task
from coevo_gym.envs.alfworld.engine import game
from coevo_gym.envs.alfworld.goals import HEAT, RoomGoal
from coevo_gym.envs.appworld.engine.engine_session import WorldSession as AppWorldEngine
from coevo_gym.envs.bfcl.engine.toolbox import Toolbox
from coevo_gym.envs.tags import tags_from, tags_of
from coevo_gym.envs.webshop import WebShopBenchmark
from coevo_gym.envs.webshop.engine.shop_session import Session
from coevo_gym.testing.benchmark import check_tags
from tests.toy import ToyBenchmark

ALL = ("webshop", "bfcl", "alfworld", "appworld", "toy")


@pytest.mark.parametrize("name", ["alfworld", "appworld", "toy"])  # others: tests/test_contract.py
def test_a_benchmark_keeps_the_contract_of_tags(name: str, engine: Callable[[str], None]) -> None:
    engine(name)
    check_tags(name)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (lambda self, task: (), "has no tags"),
        (lambda self, task: ("mug",), "tags must be kind:value"),
        (lambda self, task: ("b:1", "a:1"), "sorted"),
        (
            lambda self, task: tags_from([("way", " ".join(task.solution))]),
            "depend on its",
        ),
        (lambda self, task: ("is:task",) if isinstance(task, Task) else ("is:draft",), "its draft"),
    ],
)
def test_the_contract_of_tags_rejects_invalid_tags(
    tags: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebShopBenchmark, "tags", tags)
    with pytest.raises(AssertionError, match=words):
        check_tags("webshop")


@pytest.mark.parametrize("name", ALL)
def test_no_engine_is_started_for_tags(
    name: str, engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(name)
    tasks = get_benchmark(name).tasks(Split.TRAIN)[:20]

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an engine is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for place in (Session, Toolbox, game.Game, AppWorldEngine):
        monkeypatch.setattr(place, "__init__", refuse)
    monkeypatch.setattr(game, "open_scene", refuse)
    assert all(tags_of(task) for task in tasks)


def test_webshop_tags_are_category_family_and_options() -> None:
    tasks = coevo_gym.tasks("webshop", "train")
    asked = next(task for task in tasks if task.verifier.options)  # type: ignore[attr-defined]
    kinds = [tag.partition(":")[0] for tag in tags_of(asked)]
    assert kinds == ["category", "family", "option"]
    families = {tag for task in tasks for tag in tags_of(task) if tag.startswith("family:")}
    assert len(families) == 72


def test_alfworld_tags_are_goal_object_and_scene(engine: Callable[[str], None]) -> None:
    engine("alfworld")
    task = coevo_gym.tasks("alfworld", "train")[0]
    evolved = task.model_copy(
        update={
            "world": task.world.model_copy(
                update={"goal": RoomGoal(kind=HEAT, object="Mug", receptacle="CoffeeMachine")}
            ),
            "origin": "evolved",
        }
    )
    assert tags_of(evolved) == ("goal:heat", "object:mug", f"scene:{task.scenario}")
    assert tags_of(require_proposable(get_benchmark("alfworld")).open(task)) == (
        f"scene:{task.scenario}",
    )


def test_bfcl_tags_are_backends_and_number_of_turns() -> None:
    tasks = coevo_gym.tasks("bfcl", "train")
    tags = {tag for task in tasks for tag in tags_of(task)}
    assert {tag for tag in tags if tag.startswith("turns:")} == {
        "turns:few",
        "turns:many",
        "turns:one",
    }
    assert len({tag for tag in tags if tag.startswith("api:")}) == 8


@pytest.mark.parametrize(
    ("instruction", "tags"),
    [
        ("How many songs do I like on Spotify?", ("app:spotify", "goal:question")),
        ("Could you like the song X on Spotify?", ("app:spotify", "goal:change")),
        ("Please tell me how many notes there are on Venmo.", ("app:venmo", "goal:question")),
        (
            "Send what my friend wrote in a text message on Venmo, with the note Tea.",
            ("app:phone", "app:venmo", "goal:change"),
        ),
        ("Rename all in ~/bills.", ("app:file_system", "goal:change")),
    ],
)
def test_appworld_tags_are_read_from_the_instruction(
    instruction: str, tags: tuple[str, ...]
) -> None:
    task = (
        get_benchmark("toy").tasks(Split.TRAIN)[0].model_copy(update={"instruction": instruction})
    )
    assert get_benchmark("appworld").tags(task) == tags


def test_appworld_tags_are_the_apps_that_the_reference_calls(engine: Callable[[str], None]) -> None:
    engine("appworld")
    known = {"supervisor", "api_docs"}
    for task in coevo_gym.tasks("appworld", "train"):
        apps = {tag.removeprefix("app:") for tag in tags_of(task) if tag.startswith("app:")}
        parts = task.solution[0].split("apis.")[1:]
        assert apps == {part.partition(".")[0] for part in parts} - known, task.instruction


def test_a_benchmark_without_tags_uses_the_scenario_as_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    task = get_benchmark("toy").tasks(Split.TRAIN)[0]
    assert tags_of(task) != (f"scenario:{task.scenario}",)
    monkeypatch.delattr(ToyBenchmark, "tags")
    assert tags_of(task) == (f"scenario:{task.scenario}",)


def test_tags_are_cleaned_and_sorted() -> None:
    assert tags_from([("b", " two\n words "), ("a", "x:y"), ("c", " ")]) == ("a:x:y", "b:two words")


def test_a_target_is_part_of_a_context_and_of_its_id() -> None:
    task = get_benchmark("toy").tasks(Split.TRAIN)[0]
    plain = Context(kind="unguided", task=task)
    aimed = plain.model_copy(update={"target": ("colour:red",)})
    other = plain.model_copy(update={"target": ("colour:blue",)})
    assert len({plain.id, aimed.id, other.id}) == 3
    assert Context.model_validate_json(aimed.model_dump_json()) == aimed
    assert plain.id == plain.model_copy(update={"target": ()}).id
