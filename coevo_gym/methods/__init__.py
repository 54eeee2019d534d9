"""The methods: one file each, which assembles parts. Here are only their names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "coevolve": "coevo_gym.methods.coevolve:coevolve",
        "static": "coevo_gym.methods.coevolve:static",
        "random_append": "coevo_gym.methods.coevolve:random_append",
        "signal_blind": "coevo_gym.methods.coevolve:signal_blind",
        "static_band": "coevo_gym.methods.rbc:static_band",
        "shuffled": "coevo_gym.methods.rbc:shuffled",
        "coevolve_rbc": "coevo_gym.methods.rbc:coevolve_rbc",
        "seal": "coevo_gym.methods.seal.method:seal",
        "role_agent": "coevo_gym.methods.role_agent.method:role_agent",
        "agentevolver": "coevo_gym.methods.agentevolver.method:agentevolver",
        **{
            name: f"coevo_gym.methods.curriculum:{name}"
            for name in ("curriculum", "adarft", "plr", "learnable", "progress", "sec")
        },
        **{
            name: f"coevo_gym.methods.gradients:{name}" for name in ("rest", "ppo", "rloo", "gigpo")
        },
    }
)
"""Name → ``"module:object"``."""

DEFAULT_ARMS = ("static", "coevolve")
"""The arms of a run that names none; it is about the last one."""

DEFAULT = DEFAULT_ARMS[-1]
"""The method whose curriculum a sampler takes that is given none."""

DEFAULT_PROMPTS = "coevolve"
"""The room of the prompts that a model explores with, where a method names none, and in the round
that all arms begin with."""
