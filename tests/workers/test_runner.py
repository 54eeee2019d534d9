"""Episodes whose engines run in workers: what comes of each is the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import ConfigError, WorkersFailed
from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import EndReason, View
from coevo_gym.episodes import EnvPool, Finished, Lost, Runner, TrainingEpisode
from coevo_gym.episodes.runner import Mode
from tests.episodes.test_runner import BROKEN, MODES, REFERENCES, TRAIN, Fickle, episodes, of_each
from tests.faults import BreaksOn
from tests.workers import faulty

faulty.register()
modes = pytest.mark.parametrize("mode", MODES)


def make_env(**kwargs: str) -> gym.Env[str, str]:
    return gym.make(faulty.ENV_ID, disable_env_checker=True, **kwargs)


@pytest.fixture(scope="module")
def working() -> Iterator[EnvPool]:
    pool = EnvPool(lambda: BreaksOn(make_env(), BROKEN), max_envs=5, n_workers=2)
    yield pool
    pool.close()


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, len(TRAIN) - 1), st.integers(0, 9)), max_size=12))
@modes
def test_episodes_have_the_same_results_with_and_without_workers(
    working: EnvPool, mode: Mode, wanted: list[tuple[int, int]]
) -> None:
    run = [TrainingEpisode(TRAIN[i], seed, "g", 7) for i, seed in wanted]
    here = EnvPool(lambda: BreaksOn(make_env(), BROKEN), max_envs=3)
    results = [of_each(list(Runner(envs, mode).run(run, Fickle()))) for envs in (here, working)]
    assert results[0] == results[1]
    assert sorted(results[1]) == list(range(len(wanted)))


class Sends:
    """An agent that sends one action in the first step of one task, and else follows references."""

    def __init__(self, action: str, about: str) -> None:
        self.action, self.about = action, about
        self.references = ScriptedAgent(REFERENCES)

    def act(self, views: Sequence[View]) -> list[Act]:
        return [
            Act(self.action)
            if view.instruction == self.about and not view.history
            else self.references.act([view])[0]
            for view in views
        ]


@modes
@pytest.mark.parametrize("fault", ["kill", "memory", "raise"])
def test_a_worker_fault_loses_one_episode_and_leaves_the_others_unchanged(
    mode: Mode, fault: str
) -> None:
    envs = EnvPool(make_env, max_envs=4, n_workers=2)
    agent = Sends(fault, TRAIN[2].instruction)
    outcomes = {outcome.index: outcome for outcome in Runner(envs, mode).run(episodes(8), agent)}
    lost = outcomes.pop(2)
    assert isinstance(lost, Lost)
    assert lost.reason is EndReason.WORKER_LOST
    assert "Worker process" in str(lost.error)
    assert sorted(outcomes) == [0, 1, 3, 4, 5, 6, 7]
    assert all(
        isinstance(outcome, Finished) and outcome.record.success for outcome in outcomes.values()
    )
    envs.close()


@modes
def test_engines_of_different_workers_run_concurrently(mode: Mode, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    class Meets:
        """Two episodes that wait for each other in their engines."""

        def act(self, views: Sequence[View]) -> list[Act]:
            first = TRAIN[0].instruction
            return [
                Act(
                    "done"
                    if view.history
                    else f"{'read' if view.instruction == first else 'write'} {pipe}"
                )
                for view in views
            ]

    envs = EnvPool(make_env, max_envs=2, n_workers=2)
    outcomes = list(Runner(envs, mode).run(episodes(2), Meets()))  # or it never ends
    assert all(isinstance(outcome, Finished) for outcome in outcomes)
    envs.close()


@modes
def test_engines_that_never_start_raise_one_error(mode: Mode) -> None:
    envs = EnvPool(lambda: make_env(breaks_at="begin"), max_envs=2, n_workers=1)
    with pytest.raises(WorkersFailed, match=r"exit code 7\. That makes 4 failures"):
        list(Runner(envs, mode).run(episodes(12), ScriptedAgent(REFERENCES)))
    envs.close()


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_workers must be a positive int, got -1"):
        EnvPool(make_env, n_workers=-1)
