"""Train MaskablePPO on a curriculum in WebShop's built-in shop, on a CPU.

    python docs/trainers/sb3_maskable_ppo.py                  # 20,480 steps
    python docs/trainers/sb3_maskable_ppo.py --steps 100000   # continues from shop.zip

All envs share one curriculum, which is saved with the policy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy

from coevo_gym.curricula.pool_curriculum import make_curriculum
from coevo_gym.trainers.adapters.sb3 import make_envs, with_curriculum

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20_480, help="training steps of the env")
parser.add_argument("--checkpoint", type=Path, default=Path("shop.zip"))
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.set_num_threads(1)

shop: dict[str, Any] = {"max_choices": 32, "dim": 256, "observe_choices": True}
shop["env_kwargs"] = {"reward_mode": "original"}  # a purchase that is partly right earns a part
curriculum = make_curriculum("coevolve", detector={"pattern": "set"}, growth={"every_groups": 100})
envs = make_envs("CoEvolve-WebShop-v0", 8, group_size=4, curriculum=curriculum, **shop)
algorithm = with_curriculum(MaskablePPO)
if args.checkpoint.exists():
    model = algorithm.load(args.checkpoint, env=envs)  # the policy and the curriculum
else:
    model = algorithm("MultiInputPolicy", envs, n_steps=256, seed=args.seed, device="cpu")


def print_reward(when: str) -> None:
    """Print the mean reward on tasks that are not in training."""
    val = make_envs("CoEvolve-WebShop-v0", 4, split="val", **shop)
    reward, _ = evaluate_policy(model, val, n_eval_episodes=100, deterministic=False, warn=False)
    print(f"mean reward on 100 validation episodes, {when}: {reward:.2f}")


print_reward("before")
model.learn(args.steps, reset_num_timesteps=False)  # an update after each 8 x 256 steps
print_reward("after")
model.save(args.checkpoint)

for name, value in envs.get_attr("session")[0].metrics().items():
    if name in ("groups", "rounds", "evolved", "pool_size"):
        print(f"{name:>10} {value:.0f}")
