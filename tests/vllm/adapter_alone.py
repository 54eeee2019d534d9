"""Train an adapter that vLLM gets alone, in a process of its own, and print what was measured.

Usage: python -m tests.vllm.adapter_alone FOLDER
"""

from __future__ import annotations

import json
import sys

import torch

from coevo_gym.agents.lm.answers import Ask, Sampled, run_to_end
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig, VLLMSampler
from coevo_gym.agents.lm.vllm_policy import VLLMPolicy
from coevo_gym.core.seams import Message, Prompt, Sampling
from coevo_gym.core.trajectory import Segment
from coevo_gym.trainers.grpo import GRPO, GRPOConfig
from tests.trainers.episodes import group, trajectory
from tests.vllm.test_vllm_policy import gap

LOOK = Prompt((Message("user", "look " * 40),), Sampling(1.0, 12))
ASK = Ask(tuple(range(3, 40)), 1.0, 10)


def change(policy: VLLMPolicy) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


def main(folder: str) -> None:
    config = ModelConfig(path=folder, device="cpu", max_context=512, lora_rank=4)
    vllm = VLLMConfig(kv_cache_gib=0.25, enforce_eager=True, adapter="alone")
    policy, gaps = VLLMPolicy(config, vllm), dict[str, float]()
    gaps["untrained"] = gap(policy, policy.generate([LOOK]))
    change(policy)
    gaps["changed, not handed over"] = gap(policy, policy.generate([LOOK]))
    policy.version += 1
    gaps["handed over"] = gap(policy, policy.generate([LOOK, LOOK]))

    learner = GRPO(policy, GRPOConfig(epochs=1, lr=1e-2))
    answers = policy.generate([LOOK] * 4)
    episodes = [trajectory([a.decision], success=k < 2) for k, a in enumerate(answers)]
    learner.update([group(*episodes)])
    gaps["old answers"] = gap(policy, answers)
    gaps["updated"] = gap(policy, policy.generate([LOOK]))

    # Two versions at once: an answer in progress keeps its adapter.
    state, engine = policy.state_dict(), policy.engine
    first = VLLMSampler[int](engine, ())
    first.add(0, ASK)
    first.step()
    change(policy)
    engine.load_adapter(policy.save_adapter_weights)
    second = VLLMSampler[int](engine, ())
    second.add(0, ASK)
    n_adapters = len(engine._llm.llm_engine.list_loras())
    ((_, new),) = run_to_end(second)
    ((_, old),) = run_to_end(first)
    gaps["new adapter"] = gap_of(policy, new)
    policy.load_state_dict(state)
    gaps["begun with the old adapter"] = gap_of(policy, old)
    gaps["of the other version"] = gap_of(policy, new)
    policy.generate([LOOK])
    left = len(engine._llm.llm_engine.list_loras())
    print(json.dumps({"gaps": gaps, "n_adapters": n_adapters, "left": left}))


def gap_of(policy: VLLMPolicy, answer: Sampled) -> float:
    """Largest difference between an answer's log-probabilities and the learner's, in nats."""
    sampled = (False,) * len(ASK.prompt) + (True,) * len(answer.ids)
    segment = Segment(ASK.prompt + answer.ids, sampled, answer.logprobs)
    with torch.no_grad():
        own, _ = policy.logprobs([segment])
    return float((own[0] - torch.tensor(answer.logprobs)).abs().max())


if __name__ == "__main__":
    main(*sys.argv[1:])
