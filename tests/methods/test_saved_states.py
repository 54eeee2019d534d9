"""Whenever a session is saved, whatever its method: it can be loaded, and goes on as before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym import EvolvingTaskSampler
from coevo_gym.core.errors import CoevoError
from coevo_gym.core.registry import METHODS
from coevo_gym.curricula.pool_curriculum import make_curriculum
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import ArmConfig, arm_configs, load_config
from tests.runs.conftest import TOY
from tests.serve.test_damaged_input import damaged

NAMES = tuple(METHODS.built_in)
K = 2
Make: TypeAlias = Callable[[], EvolvingTaskSampler]


@cache
def a_run() -> tuple[Assembly, Mapping[str, ArmConfig]]:
    """A run with all methods, and the settings of each."""
    config = load_config(TOY, sets={"arms": list(NAMES)}, environ={}).config
    return Assembly(config), arm_configs(config)


def of_name(name: str, groups_per_step: int) -> EvolvingTaskSampler:
    """A sampler of a named curriculum, as a server has one; its rounds find the first tasks."""
    curriculum = make_curriculum(name, initial_size=4, growth={"every_groups": 2})
    return EvolvingTaskSampler(
        gym.make("Toy-v0"), curriculum, group_size=K, groups_per_step=groups_per_step
    )


def of_method(name: str, groups_per_step: int) -> EvolvingTaskSampler:
    """A sampler of a whole method, with its coach and its memories."""
    assembly, arms = a_run()
    method = assembly.method(arms[name])
    return EvolvingTaskSampler(
        gym.make("Toy-v0"), method=method, group_size=K, groups_per_step=groups_per_step
    )


def loaded(first: EvolvingTaskSampler, make: Make) -> EvolvingTaskSampler:
    """A new sampler in the state of the first one."""
    state = json.dumps(first.state_dict(), allow_nan=False)
    second = make()
    second.load_state_dict(json.loads(state))
    assert json.dumps(second.state_dict()) == state
    assert second.curriculum.metrics() == first.curriculum.metrics()
    return second


def play(env: EvolvingTaskSampler, solves: bool) -> tuple[Any, ...]:
    """Play one episode, with the reference's actions or with none of them."""
    observation, info = env.reset()
    task = env.unwrapped.task  # type: ignore[attr-defined]
    over, actions = False, list(task.solution) if solves else []
    while not over:
        action = actions.pop(0) if actions else "press nothing"
        *_, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return task.id, observation, info["admissible"]


@pytest.mark.parametrize("make", [of_name, of_method])
@pytest.mark.parametrize("name", NAMES)
def test_a_state_saved_after_any_episode_can_be_loaded(
    name: str, make: Callable[[str, int], EvolvingTaskSampler]
) -> None:
    factory = partial(make, name, 1)
    env = factory()
    for episode in range(8):
        if episode in (0, 1, 7):
            env = loaded(env, factory)
        play(env, solves=episode % 3 == 0)


def check_stream(
    make: Callable[[str, int], EvolvingTaskSampler],
    name: str,
    groups_per_step: int,
    episodes: Sequence[tuple[bool, bool]],
) -> None:
    """A session that is saved and loaded before some episodes is the same as one that is not.

    Args:
        make: makes a sampler.
        name: name of the method.
        groups_per_step: groups in a step.
        episodes: for each episode, whether it is saved and loaded before, and whether it solves.
    """
    factory = partial(make, name, groups_per_step)
    whole, parts = factory(), factory()
    for cut, solves in episodes:
        if cut:
            parts = loaded(parts, factory)
        assert play(parts, solves) == play(whole, solves)
    assert parts.state_dict() == whole.state_dict()


STREAMS = {
    "make": st.sampled_from([of_name, of_method]),
    "name": st.sampled_from(NAMES),
    "groups_per_step": st.sampled_from([1, 3]),
    "episodes": st.lists(st.tuples(st.booleans(), st.booleans()), max_size=10),
}


@settings(max_examples=100)
@given(**STREAMS)
def test_a_saved_session_continues_the_same_stream(**stream: Any) -> None:
    check_stream(**stream)


@pytest.mark.slow
@settings(max_examples=2000)
@given(**STREAMS)
def test_many_saved_sessions_continue_the_same_stream(**stream: Any) -> None:
    check_stream(**stream)


def check_damaged(
    make: Callable[[str, int], EvolvingTaskSampler], name: str, groups_per_step: int, seeds: range
) -> int:
    """A damaged state is refused and changes nothing, or is loaded and can be used.

    Returns:
        How many states were refused.
    """
    factory = partial(make, name, groups_per_step)
    env, n_refused = factory(), 0
    for number in range(2 * K + 1):
        play(env, solves=number % 2 == 0)
    saved = json.loads(json.dumps(env.state_dict()))
    env.reset()
    for seed in seeds:
        before = env.state_dict(), env.session.state_dict(tickets=True), env.ticket, env.notes
        try:
            env.load_state_dict(damaged(saved, seed))
        except CoevoError:
            n_refused += 1
            assert env.state_dict() == before[0]
            assert env.session.state_dict(tickets=True) == before[1]
            assert (env.ticket, env.notes) == before[2:]
        else:
            play(env, solves=True)
            json.dumps(env.state_dict())
            env.load_state_dict(saved)
            env.reset()
    return n_refused


# Without steps where there are notes: what is in the evidence of a note is its study's own.
MADE = [(of_name, 3), (of_method, 1)]


@pytest.mark.parametrize(("make", "groups_per_step"), MADE)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_state_is_never_partly_loaded(
    name: str, make: Callable[[str, int], EvolvingTaskSampler], groups_per_step: int
) -> None:
    assert check_damaged(make, name, groups_per_step, range(8)) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("make", "groups_per_step"), MADE)
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_states_are_never_partly_loaded(
    name: str, make: Callable[[str, int], EvolvingTaskSampler], groups_per_step: int
) -> None:
    assert check_damaged(make, name, groups_per_step, range(100, 250)) > 0
