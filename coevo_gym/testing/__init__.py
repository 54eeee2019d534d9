"""Helpers for tests that use the envs as deterministic fixtures.

The package includes a pytest plugin whose fixture ``coevo_env`` creates envs and closes them after
the test.
"""

from __future__ import annotations

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.testing.contract import assert_env_contract
from coevo_gym.testing.fixtures import make_env, replay

__all__ = ["ScriptedAgent", "assert_env_contract", "make_env", "replay"]
