"""Task files that somebody means ill with: refused in words, or played without any harm."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import BenchmarkNotInstalled, DataError, SplitLeakError, TaskError
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task
from coevo_gym.core.task_file import read_tasks
from coevo_gym.envs.base import TaskEnv
from coevo_gym.testing.fixtures import make_env
from tests.fuzz.documents import DEEP, objects
from tests.fuzz.grammars import GRAMMARS
from tests.quick import slow_for
from tests.runs import stored_round

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


LINE = stored_round.SECOND.to_json()
REFUSED = (TaskError, SplitLeakError, DataError, BenchmarkNotInstalled)
"""The last one where a change makes a task one of data that are not on this machine."""


def put(key: str, value: str) -> str:
    """The line of a task in which a key has another value, as JSON text."""
    data = json.loads(LINE)
    data[key] = "HERE"
    return json.dumps(data).replace('"HERE"', value)


LINES = (
    *DEEP,
    "null",
    "[]",
    "[" + LINE + "]",
    LINE[:-1],
    LINE + LINE,
    LINE + "\0",
    put("world", "[" * 50_000),
    put("world", '{"a":' * 5_000 + "1" + "}" * 5_000),
    put("provenance", '{"a":' * 90_000 + "1" + "}" * 90_000),
    put("provenance", '{"a": NaN}'),
    put("provenance", '{"a": 1e999}'),
    put("provenance", '{"a": ' + "9" * 100_000 + "}"),
    put("instruction", '"\\ud800"'),
    put("instruction", "7"),
    put("name", '{"a": 1}'),
    put("solution", '"press red"'),
    put("solution", "[1]"),
    put("parents", "{}"),
    put("split", '"TRAIN"'),
    put("split", "null"),
    put("origin", '"open"'),
    put("origin", '"mine"'),
    put("verifier", "null"),
    put("verifier", '{"order": ["red"], "more": 1}'),
    put("benchmark", "null"),
)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:20])
def test_a_line_that_is_not_a_task_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(f"{LINE}\n{line}\n".encode("utf-8", "surrogatepass"))
    with pytest.raises(TaskError, match=r"mine\.jsonl, line 2: ") as error:
        read_tasks(path)
    assert len(str(error.value)) < 5_000


def test_the_last_value_of_a_duplicate_key_wins(tmp_path: Path) -> None:
    twice = LINE[:-1] + ',"split":"test","split":"val"}'
    path = tmp_path / "mine.jsonl"
    path.write_text(twice)
    assert read_tasks(path)[0].split is Task.model_validate(json.loads(twice)).split is Split.VAL


def test_a_file_with_one_huge_line_is_refused_with_a_short_message(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"benchmark": "toy", "world": [' + b"[1," * 3_000_000)
    with pytest.raises(TaskError) as error:
        read_tasks(path)
    assert len(str(error.value)) < 5_000


@pytest.mark.parametrize(
    "path",
    ["\0", "a" * 5_000, ".", "/dev/null/x", ""],
    ids=["NUL", "too-long", "folder", "under-a-device", "empty"],
)
def test_an_unusable_path_to_a_task_file_is_refused(path: str) -> None:
    with pytest.raises(TaskError):
        make_env("webshop", tasks=path)


@pytest.mark.parametrize("name", slow_for(GRAMMARS, "appworld"))
def test_a_mutated_task_is_played_or_refused(
    name: str, engine: Callable[[str], None], tmp_path: Path
) -> None:
    engine(name)
    played_or_refused(name, 60 if name in ("webshop", "bfcl") else 12, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GRAMMARS)
def test_thousands_of_mutated_tasks_are_played_or_refused(
    name: str, engine: Callable[[str], None], tmp_path: Path
) -> None:
    engine(name)
    played_or_refused(name, 2_000, tmp_path)


def played_or_refused(name: str, n: int, folder: Path) -> None:
    """Play changed tasks of all splits from a file; then a task that was not changed."""
    benchmark, path = get_benchmark(name), folder / "mine.jsonl"
    known = {task.id: task for split in NATIVE_SPLITS for task in benchmark.tasks(split)[:4]}
    train = benchmark.tasks(Split.TRAIN)[0]
    seen = {"played": 0, "refused": 0}
    right = [opened(json.loads(task.to_json())) for task in known.values()]

    @settings(max_examples=n, database=None, suppress_health_check=list(HealthCheck))
    @given(objects(*right), st.sampled_from(["", *NATIVE_SPLITS]))
    def play(data: Any, claim: str) -> None:
        path.write_text(json.dumps({**data, "split": claim} if claim else data))
        try:
            (task,) = read_tasks(path)
            env = make_env(name, split=str(task.split), tasks=str(path))
        except REFUSED as error:
            assert len(str(error)) < 20_000  # noqa: PT017 (most of them are not refused)
            seen["refused"] += 1
            return
        honest = known.get(task.id)
        assert honest is None or task.split is honest.split or task.split is not Split.TRAIN
        run(env, task)
        seen["played"] += 1

    play()
    assert min(seen.values()) > 0
    env = make_env(name)
    run(env, train)
    assert env.info["success"]


def opened(data: Any) -> Any:
    """A task whose texts that hold JSON are JSON, so that they are changed inside, too."""
    world = data["world"]
    return {**data, "world": {**world, **_parsed(world, "config")}}


def _parsed(world: dict[str, Any], key: str) -> dict[str, Any]:
    return {key: json.loads(world[key])} if key in world else {}


def run(env: TaskEnv, task: Task) -> None:
    """Play a task's reference, and no more than nothing after it."""
    env.reset(seed=0, options={"task": task})
    over = False
    for action in (*task.solution[:30], *[""] * 60):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert math.isfinite(reward)
        over = terminated or truncated
        if over:
            assert 0.0 <= info["score"] <= 1.0
            break
    assert over
    env.close()


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("split", [Split.VAL, Split.TEST])
def test_a_held_out_task_cannot_be_relabelled_as_a_training_task(
    name: str, split: Split, engine: Callable[[str], None], tmp_path: Path
) -> None:
    """This holds for any scenario, name, parents or origin that the task claims."""
    engine(name)
    benchmark, path = get_benchmark(name), tmp_path / "mine.jsonl"
    (task, *_), (own, *_) = benchmark.tasks(split), benchmark.tasks(Split.TRAIN)
    claims: tuple[dict[str, Any], ...] = (
        {},
        {"scenario": own.scenario},
        {"scenario": own.scenario, "name": own.name, "subset": own.subset},
        {"origin": "evolved", "parents": [own.id], "scenario": own.scenario},
        {"scenario": own.scenario, "solution": own.solution, "provenance": {"kind": "native"}},
    )
    for claim in claims:
        data = {**json.loads(task.to_json()), "split": "train", **claim}
        path.write_text(json.dumps(data))
        with pytest.raises((SplitLeakError, TaskError)):
            make_env(name, tasks=str(path))


@pytest.mark.parametrize(
    "base",
    ["{train}/../{test}", "./{test}", "{train}/../../tasks/{test}", "{train}x", "", "/{test}"],
)
def test_the_base_path_of_a_world_cannot_lead_out_of_the_training_worlds(
    base: str, engine: Callable[[str], None]
) -> None:
    engine("appworld")
    benchmark = get_benchmark("appworld")
    train, test = benchmark.tasks(Split.TRAIN)[0], benchmark.tasks(Split.TEST)[0]
    names = {"train": train.world.base, "test": test.world.base}  # type: ignore[attr-defined]
    world = train.world.model_copy(update={"base": base.format(**names)})
    env = make_env("appworld")
    for split in NATIVE_SPLITS:
        task = train.model_copy(update={"world": world, "name": "", "split": split})
        with pytest.raises(TaskError, match=r"has no (task|scenario)"):
            env.reset(options={"task": task})
    env.close()


@pytest.mark.parametrize(
    "answer",
    ["{", "nan?", "[" * 100_000, "NaN", "[1e999]"],
    ids=["open-brace", "not-json", "100000-brackets", "NaN", "infinity"],
)
def test_a_verifier_answer_that_is_not_json_is_refused(
    answer: str, engine: Callable[[str], None]
) -> None:
    engine("appworld")
    data = json.loads(get_benchmark("appworld").tasks(Split.TRAIN)[0].to_json())
    data["verifier"] = {"changes": {}, "answer": answer}
    with pytest.raises(TaskError, match="the answer is not valid JSON"):
        Task.from_json(json.dumps(data))
