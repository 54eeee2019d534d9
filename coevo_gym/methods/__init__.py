"""Names of the built-in methods. The files in this folder assemble them from components."""

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
"""The ``"module:object"`` path of each method, by name."""

DEFAULT_ARMS = ("static", "coevolve")
"""The default arms of a run; the last arm is the main arm."""

DEFAULT = DEFAULT_ARMS[-1]
"""The name of the method whose curriculum samplers use by default."""

DEFAULT_PROMPTS = "coevolve"
"""The prompt folder for exploring models if a method does not name a folder, and for the round that
all arms begin with."""
