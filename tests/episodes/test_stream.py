"""Episodes at their own pace: who waits for whom, what follows what, and what is closed when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, EpisodeStream, Finished, Lost, TrainingEpisode
from tests.episodes.test_runner import BROKEN, PATIENCE_S, REFERENCES, TRAIN, Pausing, toy
from tests.faults import BreaksOn

AGENT = ScriptedAgent(REFERENCES)


def pool_that_waits(slow: int, until: threading.Event) -> EnvPool:
    """Two envs; the episode of one task waits in its step for an event."""

    def make() -> gym.Env[str, str]:
        env = toy()

        def wait(action: str) -> None:
            bare = env.unwrapped
            assert isinstance(bare, TaskEnv)
            if bare.task == TRAIN[slow]:
                assert until.wait(PATIENCE_S)

        return Pausing(env, wait)

    return EnvPool(make, max_envs=2)


def test_a_slow_episode_does_not_delay_the_start_of_others() -> None:
    may_go_on = threading.Event()
    with EpisodeStream[Any](pool_that_waits(0, may_go_on), AGENT) as stream:
        stream.begin(0, TrainingEpisode(TRAIN[0], seed=0))
        for index in range(1, 6):  # one after the other beside the one that is held
            assert stream.has_room
            stream.begin(index, TrainingEpisode(TRAIN[index], seed=0))
            assert not stream.has_room
            outcome = stream.next()
            assert isinstance(outcome, Finished)
            assert (outcome.index, outcome.record.success) == (index, True)
        assert stream.n_live == 1
        may_go_on.set()
        last = stream.next()
        assert last is not None
        assert last.index == 0
        assert stream.next() is None


def test_episodes_that_become_ready_while_the_agent_works_join_the_next_batch() -> None:
    two_more_wait = threading.Barrier(3, timeout=PATIENCE_S)
    batches: list[int] = []

    class Slow:
        """Its first answer takes until two other episodes have begun."""

        def act(self, views: Sequence[View]) -> Sequence[Act]:
            batches.append(len(views))
            if len(batches) == 1:
                two_more_wait.wait()
            return AGENT.act(views)

    class BeginsLate(gym.Wrapper[str, str, str, str]):
        def reset(self, **keywords: Any) -> Any:
            result = self.env.reset(**keywords)
            if keywords["options"]["task"] != TRAIN[0]:
                two_more_wait.wait()
            return result

    pool = EnvPool(lambda: BeginsLate(toy()), max_envs=3)
    with EpisodeStream[Any](pool, Slow()) as stream:
        submit = stream._crew.submit  # two that wait for each other cannot begin in turn
        stream._crew.submit = lambda item, job, *, alone=False: submit(item, job)  # type: ignore[method-assign]
        for index in range(3):
            stream.begin(index, TrainingEpisode(TRAIN[index], seed=0))
        outcomes = [stream.next() for _ in range(3)]
    assert all(isinstance(outcome, Finished) for outcome in outcomes)
    assert batches[0] == 1
    assert sum(batches) == sum(len(TRAIN[index].solution) for index in range(3))


def test_an_env_with_a_lost_engine_is_closed_at_once_and_frees_its_place() -> None:
    envs: list[Closing] = []

    class Closing(gym.Wrapper[str, str, str, str]):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    def make() -> gym.Env[str, str]:
        envs.append(Closing(BreaksOn(toy(), BROKEN)))
        return envs[-1]

    doomed = ScriptedAgent(REFERENCES | {TRAIN[0].instruction: (BROKEN,)})
    with EpisodeStream[Any](EnvPool(make, max_envs=1), doomed) as stream:
        stream.begin(0, TrainingEpisode(TRAIN[0], seed=0))
        assert isinstance(stream.next(), Lost)
        assert envs[0].closed
        assert stream.has_room
        stream.begin(1, TrainingEpisode(TRAIN[1], seed=0))
        assert isinstance(stream.next(), Finished)
    assert len(envs) == 2
    assert not envs[1].closed, "a sound env goes back to the pool"


def test_running_episodes_are_counted_and_end_when_the_stream_closes() -> None:
    may_go_on = threading.Event()
    pool = pool_that_waits(0, may_go_on)
    stream = EpisodeStream[Any](pool, AGENT)
    stream.begin(0, TrainingEpisode(TRAIN[0], seed=0))
    stream.begin(1, TrainingEpisode(TRAIN[1], seed=0))
    outcome = stream.next()
    assert isinstance(outcome, Finished)
    assert stream.live_env_steps == 1, "one step has been sent to the engine that is held"
    may_go_on.set()
    stream.close()
    stream.close()
    assert not pool._lent
    assert stream.busy_s > 0
