"""Sampling all answers of a list of prompts with a new sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coevo_gym.agents.lm.answers import Ask, Sampled, run_to_end
from coevo_gym.agents.lm.prefix_cache import PrefixCache
from coevo_gym.agents.lm.sampler import TokenSampler


def sample(model: Any, asks: Sequence[Ask], *, seed: int = 0, **settings: Any) -> list[Sampled]:
    """Sample an answer to each prompt, with draws seeded by ``seed`` and the prompt's place."""
    usual = {"stop_ids": [0], "max_pass_tokens": 10**6, "prefixes": PrefixCache(0)}
    sampler: TokenSampler[int] = TokenSampler(model, **{**usual, **settings})
    for place, ask in enumerate(asks):
        sampler.add(place, ask._replace(seed=(seed, place)))
    answers = dict(run_to_end(sampler))
    return [answers[place] for place in range(len(asks))]
