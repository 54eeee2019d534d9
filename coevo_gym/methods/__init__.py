"""The names of the built-in methods; each file of this folder assembles one from parts."""

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
            name: f"coevo_gym.methods.baselines:{name}"
            for name in ("curriculum", "adarft", "plr", "learnable", "progress", "sec")
        },
        **{
            name: f"coevo_gym.methods.baselines:{name}" for name in ("rest", "ppo", "rloo", "gigpo")
        },
    }
)
"""Names of methods with their ``"module:object"``."""

DEFAULT_ARMS = ("static", "coevolve")
"""The arms of a run whose config names none; the last one is the run's main arm."""

DEFAULT = DEFAULT_ARMS[-1]
"""The method whose curriculum a sampler uses by default."""

DEFAULT_PROMPTS = "coevolve"
"""The folder of the prompts for a model that explores, where a method names none, and for the round
that all arms begin with."""
