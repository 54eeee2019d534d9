from __future__ import annotations

import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FrameStackObservation

import coevo_gym
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.envs.wrappers import ChooseAction, HashText

IDS = [spec.env_id for spec in benchmark_specs()]


@pytest.mark.parametrize("env_id", ["Toy-v0", "CoEvolve-WebShop-v0"])
def test_an_index_plays_its_choice_and_other_indices_are_invalid(env_id: str) -> None:
    env = ChooseAction(gym.make(env_id), max_choices=500)
    _, info = env.reset(seed=0)
    assert info["action_mask"].sum() == len(env.choices) > 0
    _, _, _, _, info = env.step(0)
    assert info["action_valid"]
    _, _, _, _, info = env.step(len(env.choices))  # the mask excludes it
    assert not info["action_valid"]
    for outside in (-1, 500):
        with pytest.raises(ValueError, match=f"an index from 0 to 499, got {outside}"):
            env.step(outside)


def test_an_episode_can_be_solved_by_indices() -> None:
    env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), max_choices=64)
    task = coevo_gym.tasks("webshop", "train")[0]
    env.reset(options={"task": task})
    for action in task.solution:
        _, reward, terminated, _, _ = env.step(env.choices.index(action))
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize(
    ("env_id", "observed"),
    [
        *(
            pytest.param(env_id, True, marks=[pytest.mark.slow] if "AppWorld" in env_id else [])
            for env_id in IDS
        ),
        ("Toy-v0", False),
    ],
)
def test_wrapped_envs_pass_gymnasiums_checker(
    env_id: str, observed: bool, request: pytest.FixtureRequest
) -> None:
    """Warnings are errors, except for the one about an env that is already wrapped."""
    if "AppWorld" in env_id:
        request.getfixturevalue("appworld_root")
    chosen = ChooseAction(gym.make(env_id), max_choices=6, observe_choices=observed)
    for env in (chosen, HashText(chosen, dim=16)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*different from the unwrapped version")
            check_env(env, skip_render_check=True)
    chosen.close()


def test_observed_choices_match_the_action_indices() -> None:
    env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), max_choices=40, observe_choices=True)
    observation, info = env.reset(seed=0)
    for _ in range(3):
        n_choices = int(observation["action_mask"].sum())
        assert observation["choices"][:n_choices] == env.choices
        assert set(observation["choices"][n_choices:]) == {""}
        assert np.array_equal(observation["action_mask"], info["action_mask"])
        assert observation["action_mask"] is not info["action_mask"]
        assert observation["obs"] == env.unwrapped.view.observation  # type: ignore[attr-defined]
        observation, _, _, _, info = env.step(0)


@pytest.mark.parametrize("observed", [False, True])
def test_an_empty_list_of_choices_leaves_one_empty_action(
    monkeypatch: pytest.MonkeyPatch, observed: bool
) -> None:
    task = coevo_gym.tasks("webshop", "train")[0].model_copy(update={"instruction": "[ ]"})
    env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), 5, observe_choices=observed)
    observation, info = env.reset(options={"task": task})
    assert not env._benchmark.choices(env.unwrapped.view)  # type: ignore[attr-defined]
    assert info["action_mask"].tolist() == [1, 0, 0, 0, 0]
    assert env.choices == ("",)
    if observed:
        assert observation["choices"] == ("",) * 5
    assert env.action_space.sample(mask=info["action_mask"]) == 0
    *_, info = env.step(0)
    assert not info["action_valid"]
    assert info["action_mask"].any()


def test_a_final_purchase_leaves_one_choice() -> None:
    env = ChooseAction(gym.make("CoEvolve-WebShop-v0"))
    task = coevo_gym.tasks("webshop", "train")[0]
    env.reset(options={"task": task})
    for action in task.solution:
        *_, terminated, _, info = env.step(env.choices.index(action))
    assert terminated
    assert info["action_mask"].sum() == 1


def test_long_and_invalid_choices_are_members_of_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ChooseAction(gym.make("Toy-v0"), 2, observe_choices=True)
    monkeypatch.setattr(env._benchmark, "choices", lambda view: ("x" * 30_000, "\ud800"))
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space


def test_hashed_text_is_deterministic_and_has_unit_norm() -> None:
    env = HashText(gym.make("Toy-v0"), dim=64)
    first, _ = env.reset(seed=0)
    again, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    assert np.array_equal(first, again)
    assert np.linalg.norm(first) == pytest.approx(1.0)


@pytest.mark.parametrize("env_id", IDS)
def test_the_same_page_with_another_goal_is_another_observation(
    env_id: str, request: pytest.FixtureRequest
) -> None:
    if "AppWorld" in env_id:
        request.getfixturevalue("appworld_root")
    env = HashText(gym.make(env_id), dim=256)
    benchmark = env.unwrapped.benchmark  # type: ignore[attr-defined]
    pages, goals = ("Nothing happens.", "Execution successful. Nothing more."), set[bytes]()
    tasks = {task.instruction: task for task in coevo_gym.tasks(benchmark, "train")[:40:8]}
    for task in tasks.values():
        env.reset(options={"task": task})
        hashed = [env.observation(page) for page in (*pages, "")]
        assert all(vector in env.observation_space for vector in hashed)
        assert all(np.linalg.norm(vector) == pytest.approx(1.0) for vector in hashed)
        assert len({vector.tobytes() for vector in hashed}) == 3
        goals.add(hashed[0].tobytes())
    assert len(goals) == len(tasks) > 1
    env.close()


def test_a_long_page_does_not_hide_the_goal() -> None:
    env = HashText(gym.make("Toy-v0"), dim=512)
    page = " ".join(f"word{i % 90}" for i in range(5_000))
    seen = []
    for task in coevo_gym.tasks("toy", "train")[:2]:
        env.reset(options={"task": task})
        seen.append(env.observation(page))
    assert np.linalg.norm(seen[0] - seen[1]) > 0.2


def test_choices_are_hashed_one_by_one() -> None:
    inner = ChooseAction(gym.make("Toy-v0"), max_choices=9, observe_choices=True)
    env = HashText(inner, dim=64)
    observation, _ = env.reset(seed=0)
    assert observation["obs"].shape == (64,)
    assert observation["choices"].shape == (9, 64)
    assert observation["action_mask"].tolist() == [1] * 7 + [0] * 2
    assert np.linalg.norm(observation["choices"], axis=1) == pytest.approx([1.0] * 7 + [0.0] * 2)
    assert len({row.tobytes() for row in observation["choices"]}) == 8
    other, _ = env.reset(seed=1)
    assert np.array_equal(observation["choices"], other["choices"])
    assert not np.array_equal(observation["obs"], other["obs"])


def test_stacked_pages_are_hashed_one_by_one() -> None:
    env = HashText(FrameStackObservation(gym.make("Toy-v0"), 3), dim=64)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert np.linalg.norm(observation, axis=1) == pytest.approx([1.0] * 3)


def test_wrapped_envs_run_in_other_processes() -> None:
    envs = gym.make_vec(
        "Toy-v0",
        num_envs=2,
        vectorization_mode="async",
        wrappers=[lambda env: ChooseAction(env, max_choices=9, observe_choices=True)],
    )
    observations, _ = envs.reset(seed=0)
    assert observations["obs"] == TaskVectorEnv("Toy-v0", num_envs=2).reset(seed=0)[0]
    assert observations["choices"][6] == ("done", "done")
    assert observations["choices"][8] == ("", "")
    assert observations["action_mask"].sum(axis=1).tolist() == [7, 7]
    assert observations in envs.observation_space
    assert envs.step(np.array([6, 0]))[2].tolist() == [True, False]
    envs.close()


def test_a_wrapped_env_can_be_rebuilt_from_its_spec() -> None:
    inner = ChooseAction(gym.make("Toy-v0"), max_choices=9, observe_choices=True)
    env = HashText(inner, dim=16)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None])
def test_invalid_arguments_are_refused(value: object) -> None:
    message = re.escape(f" must be a positive int, got {value!r} ({type(value).__name__})")
    with pytest.raises(ValueError, match=f"max_choices{message}"):
        ChooseAction(gym.make("Toy-v0"), max_choices=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"dim{message}"):
        HashText(gym.make("Toy-v0"), dim=value)  # type: ignore[arg-type]
