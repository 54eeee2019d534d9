"""Settings of the selectors: a union discriminated by ``kind``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coevo_gym.curricula.selectors.adarft import AdaRFTConfig
from coevo_gym.curricula.selectors.band import BandConfig
from coevo_gym.curricula.selectors.base import UniformConfig
from coevo_gym.curricula.selectors.learnable import LearnableConfig
from coevo_gym.curricula.selectors.plr import PLRConfig
from coevo_gym.curricula.selectors.progress import ProgressConfig
from coevo_gym.curricula.selectors.sec import SECConfig
from coevo_gym.curricula.selectors.stages import StagesConfig

SelectorConfig = Annotated[
    UniformConfig
    | StagesConfig
    | AdaRFTConfig
    | PLRConfig
    | LearnableConfig
    | ProgressConfig
    | SECConfig
    | BandConfig,
    Field(discriminator="kind"),
]
"""Settings of any selector; ``make()`` creates it."""
