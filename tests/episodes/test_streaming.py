"""Episodes that never wait for each other's answers: an agent that streams its responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.core.seams import Act, ActStream
from coevo_gym.core.trajectory import EndReason, View
from coevo_gym.episodes import EnvPool, Finished, Lost, Runner
from coevo_gym.episodes.runner import Mode
from coevo_gym.episodes.stopping import StoppingAgent
from tests.episodes.test_runner import Fickle, episodes, of_each, toy

Seed = tuple[int, ...]


class Streaming(Fickle):
    """Answers as :class:`Fickle` does, each answer after its own number of passes.

    Attributes:
        passes: keys of the views that were in each pass.
        seeds: seeds by key, in the order in which they were passed.
    """

    def __init__(self, delays: Sequence[int] = (1,)) -> None:
        self.delays = delays
        self.passes: list[list[int]] = []
        self.seeds: dict[int, list[Seed]] = {}
        self.n_open = 0

    def act(self, views: Sequence[View]) -> list[Act]:
        raise AssertionError("an agent that streams is not asked for batches")

    @contextmanager
    def stream(self) -> Iterator[ActStream]:
        self.n_open += 1
        try:
            yield _Stream(self)
        finally:
            self.n_open -= 1


class _Stream:
    def __init__(self, agent: Streaming) -> None:
        self._agent = agent
        self._left: dict[int, tuple[int, Act]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, key: int, view: View, seed: Seed) -> None:
        assert key not in self._left
        delays = self._agent.delays
        delay = delays[(key + len(view.history)) % len(delays)]
        self._left[key] = delay, self._agent._one(view)
        self._agent.seeds.setdefault(key, []).append(seed)

    def step(self) -> list[tuple[int, Act]]:
        self._agent.passes.append([*self._left])
        self._left = {key: (n - 1, act) for key, (n, act) in self._left.items()}
        ready = [(key, act) for key, (n, act) in self._left.items() if n <= 0]
        for key, _ in ready:
            del self._left[key]
        return ready


def run(agent: Any, mode: Mode, n: int, max_envs: int = 4, **settings: Any) -> list[Any]:
    envs = EnvPool(toy, max_envs=max_envs, **settings)
    try:
        return list(Runner(envs, mode).run(episodes(n), agent))
    finally:
        envs.close()


@pytest.mark.parametrize("mode", ["lock_step", "async"])
@settings(max_examples=15)
@given(n=st.integers(1, 12), delays=st.lists(st.integers(1, 6), min_size=1, max_size=7))
def test_the_order_of_answers_changes_no_outcome(mode: Mode, n: int, delays: list[int]) -> None:
    agent = Streaming(delays)
    outcomes = run(agent, mode, n)
    assert of_each(outcomes) == of_each(run(Fickle(), "lock_step", n))
    assert agent.n_open == 0


def test_worker_processes_change_no_outcome() -> None:
    outcomes = run(Streaming((3, 1, 2)), "lock_step", 6, n_workers=2)
    assert of_each(outcomes) == of_each(run(Fickle(), "lock_step", 6))


def test_each_draw_belongs_to_an_episode_and_a_step() -> None:
    fast, slow = Streaming((1,)), Streaming((5, 1, 3))
    for agent in (fast, slow):
        run(agent, "lock_step", 8)
    assert fast.seeds == slow.seeds
    seeds = [seed for of_one in fast.seeds.values() for seed in of_one]
    assert len(set(seeds)) == len(seeds)
    for key, of_one in fast.seeds.items():
        assert of_one == [(key, step) for step in range(len(of_one))]


def test_in_this_process_the_order_of_joining_repeats_exactly() -> None:
    first, second = Streaming((4, 1, 2)), Streaming((4, 1, 2))
    for agent in (first, second):
        run(agent, "lock_step", 9)
    assert first.passes == second.passes


def test_no_episode_waits_for_another_answer() -> None:
    """While one answer takes 50 passes, the other places are filled again and again."""
    agent = Streaming((50, *[1] * 49))
    run(agent, "lock_step", 12, max_envs=3)
    long = agent.passes[:50]
    assert all(len(keys) == 3 for keys in long[:10])
    assert len({key for keys in long for key in keys}) > 3


class Impatient(StoppingAgent):
    """Ends every episode after two steps, and says aloud what the other agent does."""

    def stop(self, view: View) -> Act | None:
        return Act("", end=EndReason.AGENT_DONE) if len(view.history) == 2 else None

    def revise(self, act: Act) -> Act:
        return act._replace(said=act.text.upper())


@pytest.mark.parametrize("mode", ["lock_step", "async"])
@settings(max_examples=10)
@given(n=st.integers(1, 9), delays=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_an_agent_that_stops_episodes_early_streams_as_the_other_one_does(
    mode: Mode, n: int, delays: list[int]
) -> None:
    agent = Streaming(delays)
    outcomes = run(Impatient(agent), mode, n)
    assert of_each(outcomes) == of_each(run(Impatient(Fickle()), "lock_step", n))
    assert agent.n_open == 0
    assert max(len(seeds) for seeds in agent.seeds.values()) <= 2  # not asked again
    ended = [one for one in outcomes if isinstance(one, Finished)]
    assert all(one.env_steps <= 2 for one in ended)
    steps = [step for one in ended for step in one.record.steps]
    assert all(step.said == step.action.upper() for step in steps)


def test_an_agent_that_does_not_stream_has_no_stream_when_it_stops_early() -> None:
    assert Impatient(Fickle()).stream() is None


def test_closing_a_run_early_drops_its_answers() -> None:
    agent = Streaming((2, 9))
    envs = EnvPool(toy, max_envs=4)
    outcomes = Runner(envs).run(episodes(8), agent)
    assert isinstance(next(outcomes), Finished | Lost)
    outcomes.close()  # type: ignore[attr-defined]
    assert agent.n_open == 0
    envs.close()
