from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import coevo_gym
from coevo_gym.wrappers import ChooseAction, HashText


@pytest.mark.parametrize("env_id", ["Toy-v0", "CoEvolve-WebShop-v0"])
def test_choices_are_actions(env_id: str) -> None:
    env = ChooseAction(gym.make(env_id), max_choices=12)
    _, info = env.reset(seed=0)
    assert info["action_mask"].sum() == len(env.choices) > 0
    _, _, _, _, info = env.step(0)
    assert info["action_valid"]
    _, _, _, _, info = env.step(11 if len(env.choices) < 12 else -1)
    assert not info["action_valid"]


def test_a_whole_episode_by_index() -> None:
    env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), max_choices=64)
    task = coevo_gym.tasks("webshop", "train")[0]
    env.reset(options={"task": task})
    for action in task.solution:
        _, reward, terminated, _, _ = env.step(env.choices.index(action))
    assert (reward, terminated) == (1.0, True)


def test_hashed_words() -> None:
    env = HashText(gym.make("Toy-v0"), dim=64)
    first, _ = env.reset(seed=0)
    again, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    assert np.array_equal(first, again)
    assert np.linalg.norm(first) == pytest.approx(1.0)
    assert not env.observation("").any()


def test_wrapped_specs_rebuild() -> None:
    env = HashText(ChooseAction(gym.make("Toy-v0"), max_choices=9), dim=16)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None])
def test_bad_arguments(value: object) -> None:
    message = re.escape(f"to be a positive int, actual: {value!r} ({type(value).__name__})")
    with pytest.raises(ValueError, match=f"Expects max_choices {message}"):
        ChooseAction(gym.make("Toy-v0"), max_choices=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"Expects dim {message}"):
        HashText(gym.make("Toy-v0"), dim=value)  # type: ignore[arg-type]
