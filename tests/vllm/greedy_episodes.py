"""Play the same greedy episodes with servers and with the engine in this process, and compare.

Usage: python -m tests.vllm.greedy_episodes FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import coevo_gym
from coevo_gym.agents.chat.agent import ChatAgent, ChatConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.lm.vllm_launch import VLLMServersConfig
from coevo_gym.agents.lm.vllm_policy import VLLMPolicy
from coevo_gym.agents.lm.vllm_server import VLLMServerPolicy
from coevo_gym.core.seams import Ticket
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.envs.base import env_class_of
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.runner import run_rollout
from coevo_gym.prompts import load_prompt

NEAR_TIE = 1e-3
"""Difference of the two largest logits below which rounding may decide."""
N_EPISODES = 4


def play(policy: TransformersPolicy) -> list[list[TokenDecision]]:
    """Return the decisions in each episode of WebShop's small shop."""
    tasks = coevo_gym.tasks("webshop", subset="builtin")
    chat = ChatConfig(max_answer_tokens=24, temperature=0.0)
    agent = ChatAgent(policy, load_prompt("webshop_short"), chat)
    tickets = [Ticket(f"ticket {k}", tasks[k], f"group {k}", 0) for k in range(N_EPISODES)]

    def make_env() -> Any:
        return env_class_of("webshop")(subset="builtin", max_steps=4)

    envs = EnvPool(make_env, max_envs=N_EPISODES)
    rollout = run_rollout(tickets, agent, envs)
    envs.close()
    assert not rollout.lost
    return [
        [step.decision for step in one.steps if isinstance(step.decision, TokenDecision)]
        for one in rollout.trajectories
        if one is not None
    ]


def margin(policy: TransformersPolicy, ids: tuple[int, ...]) -> float:
    """Return the difference of the two largest logits after these ids."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0, -1]
    first, second = logits.topk(2).values
    return float(first - second)


def main(folder: str) -> None:
    config = ModelConfig(path=folder, device="cpu", max_context=2048)
    vllm = VLLMConfig(kv_cache_gib=0.25, enforce_eager=True)
    servers = VLLMServerPolicy(config, VLLMServersConfig(replicas=2), vllm)
    by_servers = play(servers)
    servers.close()
    policy = VLLMPolicy(config, vllm)
    here = play(policy)
    counts = dict.fromkeys(
        ("episodes", "answers", "equal_tokens", "near_ties", "differences_that_are_no_near_tie"), 0
    )
    for one, other in zip(by_servers, here, strict=True):
        counts["episodes"] += 1
        for a, b in zip(one, other, strict=False):
            counts["answers"] += 1
            pairs = list(zip(a.ids, b.ids, strict=False))
            place = next((k for k, (x, y) in enumerate(pairs) if x != y), len(pairs))
            counts["equal_tokens"] += place
            if a.prompt_ids == b.prompt_ids and a.ids == b.ids:
                continue
            assert a.prompt_ids == b.prompt_ids, "prompts differ although all answers were equal"
            tie = margin(policy, a.prompt_ids + a.ids[:place]) < NEAR_TIE
            counts["near_ties" if tie else "differences_that_are_no_near_tie"] += 1
            break  # after a near tie, the episodes go different ways
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
