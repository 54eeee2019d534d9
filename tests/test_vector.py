from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.errors import ConfigError, EnvBackendError, ResetNeeded
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.episodes.episode import trajectory_of
from tests.faults import break_engines

TRAIN = coevo_gym.tasks("toy", "train")
IDS = ["Toy-v0", "CoEvolve-WebShop-v0"]


@pytest.mark.parametrize("env_id", IDS)
def test_a_vector_env_equals_sequential_stepping(env_id: str) -> None:
    """The tasks have different lengths, and the shortest one is played to its end."""
    benchmark = "toy" if env_id == "Toy-v0" else "webshop"
    tasks = coevo_gym.tasks(benchmark, "train")[:12]
    envs = TaskVectorEnv(env_id, num_envs=3)
    for start in range(0, 12, 3):
        batch = tasks[start : start + 3]
        singles = [gym.make(env_id) for _ in batch]
        observations, infos = envs.reset(options={"tasks": list(batch)})
        for i, (env, task) in enumerate(zip(singles, batch, strict=True)):
            observation, info = env.reset(options={"task": task})
            assert observations[i] == observation
            assert {key: infos[key][i] for key in info} == info
        shortest = min(len(task.solution) for task in batch)
        for step in range(shortest):
            actions = [task.solution[step] for task in batch]
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            for i, env in enumerate(singles):
                observation, reward, over, cut, info = env.step(actions[i])
                assert (observations[i], rewards[i]) == (observation, reward)
                assert (terminated[i], truncated[i]) == (over, cut)
                assert {key: infos[key][i] for key in info} == info


def test_each_env_has_its_own_task_and_a_mask_resets_only_some_envs() -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=3)
    envs.reset(options={"tasks": [TRAIN[0], TRAIN[1].name, None]}, seed=[None, None, 7])
    assert envs.tasks[:2] == (TRAIN[0], TRAIN[1])
    observations, *_ = envs.step(["press red", "done", "press blue"])
    with pytest.raises(ResetNeeded, match=r"Envs \[1\] have no running episode"):
        envs.step(["", "", ""])
    mask = np.array([False, True, False])
    after, infos = envs.reset(options={"tasks": [None, TRAIN[2], None], "reset_mask": mask})
    assert after[0] == observations[0]
    assert infos["_task_id"].tolist() == mask.tolist()
    assert envs.tasks[:2] == (TRAIN[0], TRAIN[2])
    assert [len(view.history) for view in envs.views] == [1, 0, 1]


def test_next_step_autoreset_ignores_the_action_after_the_end() -> None:
    envs = gym.make_vec("Toy-v0", num_envs=1, autoreset_mode="NextStep")
    envs.reset(seed=0)
    *_, terminated, _, infos = envs.step(["done"])
    assert terminated.tolist() == [True]
    assert infos["end_reason"][0] == "failed"
    _, rewards, terminated, _, infos = envs.step(["done"])
    assert (rewards.tolist(), terminated.tolist()) == ([0.0], [False])
    assert infos["step"][0] == 0


@pytest.mark.parametrize("hook", ["_act", "_grade"])
@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
def test_an_episode_lost_by_its_engine_ends_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch, mode: str, hook: str
) -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=3, autoreset_mode=mode)
    envs.reset(options={"tasks": [*TRAIN[:3]]})
    lost = envs.unwrapped_env(1)
    with monkeypatch.context() as patch:
        break_engines(patch, hook, lambda env: env is lost)
        _, rewards, terminated, truncated, infos = envs.step([TRAIN[0].solution[0], *["done"] * 2])
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert terminated.tolist() == [False, False, True]
    assert truncated.tolist() == [False, True, False]
    assert infos["end_reason"].tolist() == ["", "worker_lost", "failed"]
    assert infos["step"].tolist() == [1, 0, 1]
    assert infos["score"].tolist() == [-1.0, -1.0, 0.0]
    assert infos["_score"].all()
    assert envs.over.tolist() == [False, True, True]
    with pytest.raises(ResetNeeded, match="was lost"):
        trajectory_of(lost)
    assert not lost.view.history
    if mode == "Disabled":
        envs.reset(options={"reset_mask": envs.over})
    else:
        *_, infos = envs.step([TRAIN[0].solution[1], "ignored", "ignored"])
        assert infos["step"].tolist() == [2, 0, 0]
    *_, terminated, _, infos = envs.step(["done"] * 3)
    assert terminated.all()
    assert infos["end_reason"].tolist() == ["failed"] * 3


@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
@pytest.mark.parametrize("faults", [1, 2])
def test_a_reset_that_fails_in_the_engine_is_retried_once(
    monkeypatch: pytest.MonkeyPatch, mode: str, faults: int
) -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=3, autoreset_mode=mode)
    envs.reset(options={"tasks": [*TRAIN[:3]]})
    envs.step(["press red", "done", "done"])
    broken, left = envs.unwrapped_env(2), [True] * faults

    def again() -> None:
        if mode == "Disabled":
            envs.reset(options={"reset_mask": envs.over})
        else:
            envs.step(["press red"] * 3)

    break_engines(monkeypatch, "_begin", lambda env: env is broken and any(left) and left.pop())
    if faults == 2:
        with pytest.raises(EnvBackendError, match="the engine is gone"):
            again()
        assert envs.over.tolist() == [False, True, True]
        assert len(envs.unwrapped_env(0).view.history) == 1
    again()
    assert not left
    assert not envs.over.any()
    envs.step(["done"] * 3)


def test_one_seed_is_expanded_to_consecutive_seeds() -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=2)
    assert envs.reset(seed=4)[0] == envs.reset(seed=[4, 5])[0] == envs.reset(seed=np.int64(4))[0]


def test_spawned_processes_share_their_observations() -> None:
    envs = gym.make_vec(
        "CoEvolve-WebShop-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn", "copy": False},
    )
    ours = TaskVectorEnv("CoEvolve-WebShop-v0", num_envs=2)
    seen, _ = envs.reset(seed=1)
    assert tuple(seen) == ours.reset(seed=1)[0]
    envs.step(("search[mug]", "search[🙂]"))
    assert tuple(seen) == ours.step(("search[mug]", "search[🙂]"))[0]
    envs.close()
    ours.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs must be a positive int, got 0"),
        ({"num_envs": 2.5}, "num_envs must be a positive int, got 2.5"),
        ({"num_envs": True}, "num_envs must be a positive int, got True"),
        ({"num_envs": "3"}, "num_envs must be a positive int, got '3'"),
        ({"autoreset_mode": "SameStep"}, "Disabled or NextStep, got SameStep"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskVectorEnv("Toy-v0", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": [None]}, "tasks must have one entry for each of the 2 envs"),
        ({"reset_mask": [1, 0]}, "reset_mask must be a bool array of shape \\(2,\\)"),
        ({"task": TRAIN[0]}, "got \\['task'\\]"),
    ],
)
def test_invalid_reset_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskVectorEnv("Toy-v0", num_envs=2).reset(options=options)


@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
@pytest.mark.parametrize("bad", [5, None, b"done", ["done"]])
def test_an_invalid_action_steps_no_env(mode: str, bad: object) -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=3, autoreset_mode=mode)
    envs.reset(options={"tasks": [*TRAIN[:3]]})
    if mode == "NextStep":
        envs.step(["done", "press red", "press red"])
    before = envs.views, envs.over.tolist(), list(envs.next_tasks)
    with pytest.raises(TypeError, match=r"An action of env 2 must be a string, got .*\("):
        envs.step(["press red", "press red", bad])  # type: ignore[list-item]
    assert (envs.views, envs.over.tolist(), list(envs.next_tasks)) == before
    envs.step(["press red"] * 3)


def test_the_action_of_a_finished_env_is_ignored() -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=2, autoreset_mode="NextStep")
    envs.reset(seed=0)
    envs.step(["done", "press red"])
    *_, infos = envs.step([None, "press red"])  # type: ignore[list-item]
    assert infos["step"].tolist() == [0, 2]


def test_step_needs_one_action_per_env() -> None:
    envs = TaskVectorEnv("Toy-v0", num_envs=2)
    envs.reset(seed=0)
    for actions in (["done"], "ab", 5):
        with pytest.raises(ConfigError, match="actions must have one entry for each of the 2 envs"):
            envs.step(actions)  # type: ignore[arg-type]
    envs.close()
    envs.close()
