"""Stable-Baselines3 trains on text envs through the wrappers."""

from __future__ import annotations

import gymnasium as gym
import pytest

from coevo_gym.envs.wrappers import ChooseAction, HashText

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("env_id", ["Toy-v0", "CoEvolve-WebShop-v0"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_two_thousand_steps_of_ppo(env_id: str, observed: bool) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install coevo-gym[sb3]")
    chosen = ChooseAction(gym.make(env_id), max_choices=32, observe_choices=observed)
    env = HashText(chosen, dim=128)
    policy = "MultiInputPolicy" if observed else "MlpPolicy"
    model = sb3.PPO(policy, env, n_steps=250, batch_size=50, seed=0, device="cpu")
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(2_000)
    assert model.num_timesteps == 2_000
    assert any((a != b).any() for a, b in zip(before, model.policy.parameters(), strict=True))
    assert len(model.ep_info_buffer) > 10
    action, _ = model.predict(env.reset(seed=1)[0], deterministic=True)
    assert env.action_space.contains(int(action))
