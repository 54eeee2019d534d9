"""Simulated worlds: their skills, learners and task generators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel


class WorldConfig(FrozenModel):
    """Settings for a simulated world.

    A task is a chain of skills. A step with skill k succeeds with probability
    sigmoid(strength of k + memory of the task - difficulty of the task). The first failed step ends
    the episode.
    """

    n_skills: int = Field(default=40, gt=0)
    """Number of skills. Held-out tasks require all of them equally often."""
    max_length: int = Field(default=4, gt=0)
    """Maximum number of skills per task; every length up to it is equally likely."""
    mean_strength: float = 0.0
    """Mean strength of the skills before training."""
    sd_strength: float = Field(default=1.5, ge=0)
    """Standard deviation of the strengths before training."""
    sd_difficulty: float = Field(default=1.0, ge=0)
    """Standard deviation of the tasks' difficulties, whose mean is 0."""

    lr: float = Field(default=0.05, gt=0)
    """Step size of Adam on the strengths."""
    memory: float = Field(default=0.5, ge=0, le=1)
    """Share of the learning on a task that does not transfer to other tasks."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Share of all learning that is forgotten at each update."""
    group_size: int = Field(default=8, ge=2)
    """Number of episodes per group, which are compared with each other."""
    groups_per_step: int = Field(default=16, gt=0)
    """Number of groups per update."""
    env_steps: int = Field(default=40_000, gt=0)
    """Env steps after which a run ends, including exploration."""
    wander_steps: int = Field(default=0, ge=0)
    """Number of env steps by which an episode continues after a failed step."""

    first_tasks: int = Field(default=40, gt=0)
    """Number of initial tasks."""
    explore_steps: int = Field(default=8, ge=0)
    """Env steps for exploring one context, which yields one draft."""
    skew: float = Field(default=1.0, ge=0)
    """Skew of the generator's skill frequencies: the i-th skill has weight i^-skew."""
    known_skills: float = Field(default=1.0, ge=0, le=1)
    """Share of the skills that the generator knows; the others are drawn rarely."""
    seldom: float = Field(default=0.03, ge=0, le=1)
    """Factor on the weight of unknown skills."""
    unsolvable: float = Field(default=0.0, ge=0, le=1)
    """Share of drafts that cannot be solved."""
    trivial: float = Field(default=0.0, ge=0, le=1)
    """Share of drafts that any learner solves."""
    coin: float = Field(default=0.0, ge=0, le=1)
    """Share of drafts whose reward is a coin flip."""
    mutation: float = Field(default=0.3, ge=0, le=1)
    """Probability that a skill is replaced when a task is varied."""
    drift: float = Field(default=0.5, ge=0, le=1)
    """Change of difficulty when a task is varied; with 1, the difficulty is drawn independently."""
    compliance: float = Field(default=0.8, ge=0, le=1)
    """Probability that the generator follows each tag of its target."""
    proof: bool = False
    """Replay drafts before accepting them, so that no accepted task is unsolvable."""


WORLDS: Mapping[str, WorldConfig] = MappingProxyType(
    {
        "plain": WorldConfig(skew=0.0, sd_strength=1.0),
        "skew": WorldConfig(skew=1.3),
        "cover": WorldConfig(skew=0.0, known_skills=0.4),
        "junk": WorldConfig(skew=0.5, unsolvable=0.35, trivial=0.35),
        "hard": WorldConfig(skew=0.5, mean_strength=-1.5, sd_difficulty=1.5),
        "alf": WorldConfig(
            skew=0.5,
            mean_strength=-0.5,
            sd_difficulty=1.5,
            wander_steps=15,
            first_tasks=120,
            explore_steps=12,
            groups_per_step=8,
            env_steps=60_000,
        ),
        "forget": WorldConfig(decay=0.01),
        "coin": WorldConfig(skew=0.5, coin=0.3),
        "skewed": WorldConfig(
            skew=1.3, decay=0.01, first_tasks=60, unsolvable=0.4, wander_steps=2, proof=True
        ),
        "null": WorldConfig(
            skew=0.0,
            sd_strength=1.0,
            sd_difficulty=1.5,
            memory=0.0,
            first_tasks=200,
            explore_steps=2,
            env_steps=60_000,
        ),
    }
)
"""Worlds that an experiment can select by name.

The first eight differ in the difficulty of training. In ``skewed``, the generator neglects most
skills and four of ten drafts are broken, which replaying detects. In ``null``, the initial tasks
teach everything, so no curriculum can make a difference.
"""


NULL = "null"
"""The world in which no curriculum can make a difference."""
CONTROLS = ("skewed", NULL)
"""Control worlds with a known expected result; all other worlds are for comparisons."""


def find_world(name: str) -> WorldConfig:
    """Return the world with the given name.

    Raises:
        ConfigError: if the world does not exist.
    """
    if name not in WORLDS:
        raise ConfigError(f"Unknown world {name!r}. Choose one of: {', '.join(WORLDS)}.")
    return WORLDS[name]
