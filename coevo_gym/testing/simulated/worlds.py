"""The simulated worlds: what there is to be learned, how, and who makes new tasks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel


class WorldConfig(FrozenModel):
    """A simulated world.

    A task is a chain of skills. A step with skill k succeeds with the probability
    sigmoid(strength of k + what is remembered of the task - difficulty of the task), and the first
    step that fails ends the episode.
    """

    n_skills: int = Field(default=40, gt=0)
    """Skills that there are. Held-out tasks ask for all of them equally often."""
    max_length: int = Field(default=4, gt=0)
    """Most skills of a task; every length up to it is equally likely."""
    mean_strength: float = 0.0
    """Mean strength of the skills before any practice."""
    sd_strength: float = Field(default=1.5, ge=0)
    """Standard deviation of that."""
    sd_difficulty: float = Field(default=1.0, ge=0)
    """Standard deviation of the tasks' difficulties, whose mean is 0."""

    lr: float = Field(default=0.05, gt=0)
    """Step of Adam on the strengths."""
    memory: float = Field(default=0.5, ge=0, le=1)
    """Share of what is learned on a task that stays with that task, and helps no other."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Share of all that was learned that is forgotten at each update."""
    group_size: int = Field(default=8, ge=2)
    """Episodes of a task that are judged against each other."""
    groups_per_step: int = Field(default=16, gt=0)
    """Groups behind one update."""
    env_steps: int = Field(default=40_000, gt=0)
    """Env steps after which a run ends, those of exploration among them."""
    wander_steps: int = Field(default=0, ge=0)
    """Env steps that an episode goes on for after the step that failed."""

    first_tasks: int = Field(default=40, gt=0)
    """Tasks to begin with."""
    explore_steps: int = Field(default=8, ge=0)
    """Env steps that exploring one context takes; it gives one draft."""
    skew: float = Field(default=1.0, ge=0)
    """How unequally often the generator thinks of the skills: the i-th with weight i^-skew."""
    known_skills: float = Field(default=1.0, ge=0, le=1)
    """Share of the skills that it knows; of the others it thinks seldom."""
    seldom: float = Field(default=0.03, ge=0, le=1)
    """How seldom: by this factor."""
    unsolvable: float = Field(default=0.0, ge=0, le=1)
    """Share of its drafts that nobody can solve."""
    trivial: float = Field(default=0.0, ge=0, le=1)
    """Share of its drafts that anybody can solve."""
    coin: float = Field(default=0.0, ge=0, le=1)
    """Share of its drafts whose reward is a coin flip."""
    mutation: float = Field(default=0.3, ge=0, le=1)
    """How probably a skill is another one where it varies a task."""
    drift: float = Field(default=0.5, ge=0, le=1)
    """How far the difficulty of such a variation is from that of its task; 1 is any."""
    compliance: float = Field(default=0.8, ge=0, le=1)
    """How probably it heeds each tag of the target that it is sent out for."""
    proof: bool = False
    """Whether drafts are replayed before they are accepted, so that none is unsolvable."""


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
"""The worlds that an experiment can name.

The first eight differ from each other in what makes practice hard. In ``skewed`` the generator
neglects most skills, and four of ten drafts are broken, which proof finds out; in ``null`` the
first tasks teach all that there is, so that no curriculum can matter.
"""


NULL = "null"
"""The world in which no curriculum can matter."""
CONTROLS = ("skewed", NULL)
"""Worlds of which it is known beforehand what must come out; the others are for comparisons."""


def world_named(name: str) -> WorldConfig:
    """The world of that name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in WORLDS:
        raise ConfigError(f"There is no world {name!r}. Choose one of: {', '.join(WORLDS)}.")
    return WORLDS[name]
