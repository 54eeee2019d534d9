"""Difference between the log-probabilities of the sampler and of the learner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gpu_parts.card import free_memory
from gpu_parts.subjects import Subject, random_prompts, use_bf16_on

from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.trainers.segments import segments
from coevo_gym.trainers.update.loss import k3

RANKS = {"all weights": 0, "adapter": 64}
ANSWERS = {"cuda": (32, 64), "cpu": (16, 64)}
"""Number of answers, and maximum tokens of each, by device."""


def measure_mismatch(subject: Subject, device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for training all weights in bf16, and one for training an adapter."""
    for trained, rank in RANKS.items():
        free_memory(device)
        with use_bf16_on(device):
            config = {"path": subject.folder, "device": device, "lora_rank": rank}
            policy = TransformersPolicy(ModelConfig.model_validate(config))
            yield {"model": subject.name, "trained": trained, **_compare(policy, device)}


def _compare(policy: TransformersPolicy, device: str) -> dict[str, Any]:
    n, most = ANSWERS[device]
    asked = random_prompts(
        policy.format,
        policy.tokenizer,
        n,
        np.random.default_rng(0),
        prompt=(16, 48),
        answer=(most, most),
    )
    decisions = [answer.decision for answer in policy.generate(asked)]
    parts = segments([d for d in decisions if isinstance(d, TokenDecision)])
    sampler = torch.tensor([logprob for part in parts for logprob in part.logprobs])
    with torch.no_grad():
        logps, mask = policy.logprobs(parts)
    learner = logps[mask]
    gap = (learner - sampler).abs()
    return {
        "tokens": len(gap),
        "entropy": -float(sampler.mean()),
        "mean_off": float(gap.mean()),
        "max_off": float(gap.max()),
        "kl": float(k3(sampler, learner).mean()),
    }
