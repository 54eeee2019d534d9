"""Helpers for tests that use the envs as deterministic fixtures.

With coevo_gym comes a pytest plugin: the fixture ``coevo_env`` makes envs and
closes them.
"""

from __future__ import annotations

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.testing.contract import assert_env_contract
from coevo_gym.testing.fixtures import make_env, replay

__all__ = ["ScriptedAgent", "assert_env_contract", "make_env", "replay"]
