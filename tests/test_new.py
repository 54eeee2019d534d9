"""`coevo new` writes what works as it is written, installed and under a name of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.random import Generator

import coevo_gym
from coevo_gym.cli.new.verbs import write_module, write_package
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import RoundResult, Signal
from coevo_gym.core.registry import METHODS
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.signal_growth import SignalGrowth
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.methods.contract import assert_method_contract
from coevo_gym.testing.benchmark import BENCHMARK_CHECKS
from coevo_gym.testing.contract import CHECKS
from coevo_gym.testing.curriculum import assert_curriculum_contract
from coevo_gym.testing.gate import assert_gate_contract, draft_of

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "tests" / "runs" / "toy.toml").read_text()


class Place(NamedTuple):
    """A folder where a package is installed, and the commands that are run there."""

    folder: Path

    def run(self, *arguments: str | Path, stdin: str = "", rc: int | None = 0) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "site"), "COLUMNS": "300"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert rc in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    def coevo(self, *arguments: str, stdin: str = "", rc: int | None = 0) -> str:
        return self.run("-m", "coevo_gym.cli", *arguments, stdin=stdin, rc=rc)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A package as `coevo new benchmark` writes it, installed as pip does."""
    place = Place(tmp_path_factory.mktemp("place"))
    assert "pip install -e './coevo-tea-room[dev]'" in place.coevo("new", "benchmark", "tea_room")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    place.run(*install, "--target", "site", "./coevo-tea-room")
    return place


def test_a_new_package_contains_no_name_of_the_skeleton(place: Place) -> None:
    files = [path for path in (place.folder / "coevo-tea-room").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "pyproject.toml", "world.py", "tasks.py", "engine.py", "env.py", "builder.py",
        "choices.py", "setup.py", "prompt.j2", "test_contract.py",
    }  # fmt: skip
    for path in files:
        assert "newbench" not in str(path)
        assert "newbench" not in path.read_text().lower()


def test_a_new_benchmark_passes_its_contract_tests(place: Place) -> None:
    output = place.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "coevo-tea-room")
    assert f"{len(CHECKS) + len(BENCHMARK_CHECKS)} passed" in output


def test_a_new_benchmark_is_listed_and_ready(place: Place) -> None:
    assert "TeaRoom-v0" in place.coevo("envs")
    assert "tea_room: ready" in place.run(
        "-c",
        "from coevo_gym.cli.benchmarks import doctor\ntry: doctor()\nexcept BaseException: ...",
    )
    assert "tea_room/room-0/0" in place.coevo("tasks", "tea_room")
    place.coevo("install", "tea_room", rc=2)


def test_a_new_benchmark_can_be_played_and_evaluated(place: Place) -> None:
    assert "into the" in place.coevo("play", "tea_room", "--seed", "1", stdin="1\nq\n")
    output = place.coevo(
        "eval", "tea_room", "--policy", "scripted", "--set", "evaluation.n_tasks=5"
    )
    assert "100.0%" in output


@pytest.mark.slow
def test_a_new_benchmark_can_be_trained_resumed_and_reported(place: Place) -> None:
    settings = SETTINGS.replace("toy-run", "tea-run").replace('"toy"', '"tea_room"')
    short = settings.replace("max_steps = 6", "max_steps = 2").replace(
        "n_tasks = 40", "n_tasks = 8"
    )
    (place.folder / "tea.toml").write_text(short)
    output = place.coevo("train", "tea.toml")
    assert "coevolve" in output
    assert "tea-run" in place.coevo("resume", "tea-run")
    place.coevo("report", "tea-run")
    assert "tea_room" in (place.folder / "runs" / "tea-run" / "report.html").read_text()
    assert "%" in place.coevo("eval", "tea-run", "--split", "test")


def test_a_new_gate_keeps_the_contract(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.coevo("new", "gate", "short_words")
    assert place.run("short_words.py") == "short_words keeps the contract of a gate.\n"
    assert "newgate" not in (tmp_path / "short_words.py").read_text().lower()


@pytest.mark.parametrize("kind", ["method", "curriculum"])
def test_a_new_method_or_curriculum_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    output = place.coevo("new", kind, "my_way")
    assert "--set plugins.methods=methods --set arms=my_way" in output
    assert place.run("methods/my_way.py") == f"my_way keeps the contract of a {kind}.\n"
    text = (tmp_path / "methods" / "my_way.py").read_text()
    assert 'methods = "methods"' in text
    assert f"new{kind}" not in text.lower()


def test_a_new_learner_keeps_the_contract_with_all_threads(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "--set learner=learners/my_way.py:MyWay" in place.coevo("new", "learner", "my_way")
    assert place.run("learners/my_way.py") == "my_way keeps the contract of a learner.\n"


def test_new_methods_can_be_arms_of_a_run(place: Place) -> None:
    place.coevo("new", "method", "my_way")
    place.coevo("new", "curriculum", "rare_first")
    settings = SETTINGS.replace("toy-run", "my-run").replace('"toy"', '"tea_room"')
    short = settings.replace("max_steps = 6", "max_steps = 2")
    arms = 'arms = ["my_way", "rare_first"]\n'
    (place.folder / "my.toml").write_text(f'{arms}{short}\n[plugins]\nmethods = "methods"\n')
    output = place.coevo("train", "my.toml")
    assert "my_way" in output
    assert "rare_first" in output
    place.coevo("resume", "my-run")
    assert "rare_first" in (place.folder / "runs" / "my-run" / "report.html").read_text()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for kind, name in (("method", "static"), ("curriculum", "coevolve"), ("benchmark", "webshop")):
        place.coevo("new", kind, name, rc=2)
    assert not list(tmp_path.iterdir())


class _Broken(PoolCurriculum):
    """Keeps all promises but one."""

    def __init__(self, promise: str) -> None:
        super().__init__(coevo_gym.tasks("webshop")[:9], growth=SignalGrowth())
        self.promise = promise

    def next(self, n: int, rng: Generator) -> list[Task]:
        if self.promise == "seed":
            rng = np.random.default_rng()
        return super().next(n - (self.promise == "count"), rng)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.promise == "state":
            state = {**state, "pool": PoolCurriculum(list(self.pool)[::-1]).state_dict()["pool"]}
        super().load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        values = super().metrics()
        return {**values, "tasks": len(self.pool)} if self.promise == "metrics" else values

    def apply(self, result: RoundResult) -> None:
        if self.promise == "twice":
            self._applied.clear()
        super().apply(result)

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        return [] if self.promise == "split" else super().record(groups)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        ("seed", "two identical curricula draw differently"),
        ("count", "returns 2 tasks"),
        ("state", "draws differently"),
        ("metrics", "metric tasks is not a float"),
        ("twice", "a round is applied twice"),
        ("split", "record accepts a test task"),
    ],
)
def test_the_curriculum_contract_rejects_a_curriculum_that_breaks_a_promise(
    promise: str, words: str
) -> None:
    assert_curriculum_contract(lambda: _Broken(""))
    with pytest.raises(AssertionError, match=words):
        assert_curriculum_contract(lambda: _Broken(promise))


@pytest.mark.parametrize("name", METHODS.names())
def test_built_in_methods_keep_the_contract(name: str) -> None:
    assert_method_contract(METHODS.load(name), benchmark="toy")


def test_the_gate_contract_rejects_a_gate_that_accepts_every_draft() -> None:
    from coevo_gym.curricula.gates.gates import PrefixGate

    good = draft_of("webshop")
    with pytest.raises(AssertionError, match="accepts a draft that it should reject"):
        assert_gate_contract(PrefixGate(), passes=good, fails=good)


@pytest.mark.parametrize("name", ["Kettle", "2go", "a-b", "", "class", "a__b", "../a"])
def test_a_name_that_is_not_an_identifier_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a gate"):
        write_module("gate", name, tmp_path)
    with pytest.raises(ConfigError, match="cannot be the name of a benchmark"):
        write_package("benchmark", name, tmp_path / "new")


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    write_module("gate", "mine", tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.py already exists"):
        write_module("gate", "mine", tmp_path)
    with pytest.raises(ConfigError, match=r"is not empty\. Choose another folder"):
        write_package("benchmark", "mine", tmp_path)
