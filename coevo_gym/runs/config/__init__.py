"""The settings of a run, as a typed tree that records the origin of each value.

Values come from the defaults, a preset or TOML file, the environment (``COEVO_CFG__SECTION__KEY``)
and the command line (``--set section.key=value``); later sources win. A section with a name or a
kind can be set to it directly: ``benchmark=bfcl``. A file may extend a preset (``extends =
"quickstart"``) and describe itself (``about``).
"""

from coevo_gym.runs.config.arms import (
    ArmConfig,
    approve_settings,
    arm_configs,
    asks_policy,
    demand_of,
    demands,
    not_loaded,
    own_code,
)
from coevo_gym.runs.config.sources import Resolved, Sets, about_preset, load_config, preset_names
from coevo_gym.runs.config.tree import RunConfig

__all__ = [
    "ArmConfig",
    "Resolved",
    "RunConfig",
    "Sets",
    "about_preset",
    "approve_settings",
    "arm_configs",
    "asks_policy",
    "demand_of",
    "demands",
    "load_config",
    "not_loaded",
    "own_code",
    "preset_names",
]
