"""Every registered env keeps every promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from numpy.random import Generator

from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import ResetNeeded
from coevo_gym.core.task import Split, Verifier, World
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.webshop import WebShopBenchmark
from coevo_gym.testing.benchmark import BENCHMARK_CHECKS, assert_benchmark_contract
from coevo_gym.testing.contract import CHECKS, Poison, assert_env_contract
from tests.toy import ToyEnv

BENCHMARKS = {spec.env_id: spec.name for spec in benchmark_specs()}


SLOW_ON_APPWORLD = {"check_gymnasium", "check_same_in_another_process", "check_vector"}


@pytest.mark.parametrize(
    ("check", "env_id"),
    [
        pytest.param(
            check,
            env_id,
            id=f"{check.__name__}-{env_id}",
            marks=[pytest.mark.slow]
            if name == "appworld" and check.__name__ in SLOW_ON_APPWORLD
            else [],
        )
        for check in CHECKS
        for env_id, name in BENCHMARKS.items()
    ],
)
def test_an_env_keeps_the_contract(
    env_id: str, check: Callable[[str], None], engine: Callable[[str], None]
) -> None:
    engine(BENCHMARKS[env_id])
    check(env_id)


@pytest.mark.parametrize("name", ["webshop", "bfcl"])
@pytest.mark.parametrize("check", BENCHMARK_CHECKS, ids=lambda check: check.__name__)
def test_a_benchmark_keeps_the_contract(name: str, check: Callable[[str], None]) -> None:
    check(name)


class _Peeping(ToyEnv):
    """Reads what only the judge may know, in one of the ways that its authors might."""

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        with pytest.raises(ResetNeeded, match="No episode has begun"):
            _ = self.task  # there is no way from an engine's start to the task
        return super()._begin(world, instruction, rng)

    def _review(self, verifier: Verifier, frame: Frame) -> Frame:
        self.kept = verifier
        return frame

    def _act(self, action: str) -> Frame:
        frame = super()._act(action)
        if action == "done":
            return frame
        if action == f"press {self.task.world.buttons[0]}":  # type: ignore[attr-defined]
            _ = self.kept.order  # type: ignore[attr-defined]
        _ = self.task.solution
        return frame


@pytest.mark.parametrize(
    ("action", "read"),
    [("press red", r"_act reads ToyVerifier\.order"), ("press blue", r"_act reads Task\.solution")],
)
def test_an_engine_that_reads_the_ground_truth_is_detected(action: str, read: str) -> None:
    env = _Peeping()
    poison = Poison(env)
    task = poison.poison_task(env.tasks[0])
    env.reset(options={"task": task})
    env.step("done")
    env.reset(options={"task": task})
    with pytest.raises(AssertionError, match=read):
        env.step(action)
    assert task.solution == env.tasks[0].solution
    assert task.id == env.tasks[0].id


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"side_of": lambda self, task: Split.TRAIN}, "is not in split val"),
        ({"demonstration": lambda self, task: ()}, "the demonstration does not solve it"),
        ({"choices": lambda self, view: ()}, "the first view has no choices"),
        ({"drafts": lambda self, trace, context, rng: []}, "no draft of 0 passed the gates"),
    ],
)
def test_the_benchmark_contract_rejects_a_broken_benchmark(
    broken: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, method in broken.items():
        monkeypatch.setattr(WebShopBenchmark, name, method)
    with pytest.raises(AssertionError, match=words):
        assert_benchmark_contract("webshop")


def test_the_env_contract_rejects_a_broken_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyEnv, "_grade", lambda self, verifier: Grade(0.0, False))
    with pytest.raises(AssertionError, match="the reference failed"):
        assert_env_contract("Toy-v0")
