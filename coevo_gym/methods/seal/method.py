"""SEAL, assembled: GRPO on the same tasks, guided by what fails and weighed by it.

Without its interface and its weights it is ``static``, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.coevolve import StaticSettings, static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.methods.seal.last_failure import LastFailure
from coevo_gym.methods.seal.profile import FailureProfile, ProfileConfig
from coevo_gym.methods.seal.reweighted import Reweighted, Utility, Weighing
from coevo_gym.methods.seal.shown.coach import InterfaceCoach
from coevo_gym.methods.seal.study import InterfaceVersions, TurnLabels
from coevo_gym.methods.seal.utilities import CLIP, Clip
from coevo_gym.methods.seal.weights import ApplyTo, Budget
from coevo_gym.trainers.credit import Credit, credit_of
from coevo_gym.trainers.settings import GRPOConfig


class SEALSettings(FrozenModel):
    """What is shown, what is weighed, and when both change."""

    schema_notes: bool = True
    """Schemas of tools, and documents of APIs, say what is required and which values they take."""
    error_hints: bool = True
    """After an action that failed stands a line about its class of error."""
    cues: bool = True
    """The system text has a line about each failure that is common."""
    utility: Utility | Literal["none"] = "fixed"
    """What a label weighs: always the same, a moving value (``ema``), or nothing (``none``)."""
    clip: Clip = CLIP
    """Lowest and highest weight of a trajectory."""
    apply_to: ApplyTo = "all"
    """Which advantages are weighed: all, or the ``negative`` ones."""
    strength: float = Field(default=1.0, ge=0, le=1)
    """Share of a weight's distance from 1 that is kept."""
    normalise_mean: bool = False
    """Divide weights by their mean over the group's trajectories with labels."""
    task_weights: bool = False
    """Draw tasks by what failed in them last, in place of ``curriculum.selector``."""
    native: bool = False
    """Practise all native training tasks, as the paper does, in place of the first tasks."""
    profile: ProfileConfig = ProfileConfig()
    """When cues come on and go off, and how utilities move."""

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> Self:
        low, high = self.clip
        if not 0 <= low <= 1 <= high:
            raise ValueError(f"clip must be a range around 1, from 0 up, actual: {self.clip}")
        return self

    @property
    def guides(self) -> bool:
        """Whether anything is shown."""
        return self.schema_notes or self.error_hints or self.cues

    @property
    def budget(self) -> Budget | None:
        """How far weights may go from 1; None for as far as the clip."""
        found = Budget(self.strength, self.normalise_mean)
        return None if found == Budget() else found


@method("seal", curriculum={"growth": {"kind": "none"}})
def seal(settings: SEALSettings, kit: Kit) -> Method:
    """Failures of the turns reshape what is shown and weigh what is learned (arXiv 2605.24426)."""
    profile = FailureProfile(settings.profile, clip=settings.clip)
    found = replace(
        static(StaticSettings(), kit),
        studies=(TurnLabels(kit.benchmark),),
        memories={"profile": profile},
    )
    if settings.native or settings.task_weights:
        pool = kit.curriculum.make(
            kit.native_tasks if settings.native else (),
            native=kit.starts,
            selector=LastFailure(profile) if settings.task_weights else None,
        )
        first_round = None if settings.native else found.first_round
        found = replace(found, curriculum=pool, first_round=first_round)
    if settings.guides:
        shown = {"schema_notes": settings.schema_notes, "error_hints": settings.error_hints}
        found = replace(
            found,
            studies=(*found.studies, InterfaceVersions(**shown)),
            coach=InterfaceCoach(profile, **shown, cues=settings.cues),
        )
    utility = settings.utility
    return found if utility == "none" else _weighing(found, profile, settings, utility)


def _weighing(
    found: Method, profile: FailureProfile, settings: SEALSettings, utility: Utility
) -> Method:
    """The method with a credit that weighs by labels."""
    if not isinstance(found.learner, GRPOConfig):
        raise ConfigError(
            f"SEAL weighs advantages, and a learner of kind {found.learner.kind!r} judges rollouts "
            "by itself. Set learner.kind=pg, or method.utility=none."
        )
    weighing = Weighing()
    transform = Reweighted(
        profile,
        weighing,
        utility=utility,
        clip=settings.clip,
        apply_to=settings.apply_to,
        budget=settings.budget,
    )
    estimator = credit_of(found.learner).estimator
    memories = {**found.memories, "weights": weighing}
    return replace(found, credit=Credit(estimator, (transform,)), memories=memories)
