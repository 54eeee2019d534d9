"""The SEAL method: GRPO with an interface and trajectory weights that adapt to failures.

Without the interface and the weights, it is identical to ``static``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.coevolve import make_static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.methods.seal.interface import InterfaceCoach, InterfaceVersions
from coevo_gym.methods.seal.profile import CLIP, Clip, FailureProfile, ProfileConfig, TurnLabels
from coevo_gym.methods.seal.weights import (
    ApplyTo,
    LastFailure,
    Reweighted,
    Utility,
    Weighing,
    WeightLimits,
)
from coevo_gym.trainers.credit import Credit, credit_of
from coevo_gym.trainers.settings import GRPOConfig


class SEALSettings(FrozenModel):
    """Settings for the SEAL method."""

    schema_notes: bool = True
    """Mark required parameters and allowed values in tool schemas and API documentation."""
    error_hints: bool = True
    """Show a hint about the class of error after a failed action."""
    cues: bool = True
    """Show a line about each common failure in the system message."""
    utility: Utility | Literal["none"] = "fixed"
    """Weight of each label: a fixed value, a moving value (``ema``), or no weights (``none``)."""
    clip: Clip = CLIP
    """Lowest and highest weight that a trajectory can have."""
    apply_to: ApplyTo = "all"
    """Advantages to weight: ``all``, only ``negative`` advantages, or only ``positive`` ones."""
    strength: float = Field(default=1.0, ge=0, le=1)
    """Share of each weight's distance from 1 to keep; 0 makes all weights 1."""
    normalise_mean: bool = False
    """Divide weights by their mean over the group's labelled trajectories."""
    task_weights: bool = False
    """Draw tasks according to their last failure instead of using ``curriculum.selector``."""
    native: bool = False
    """Train on all native training tasks, as in the paper, instead of the initial tasks."""
    profile: ProfileConfig = ProfileConfig()
    """Settings for switching cues on and off, and for updating utilities."""

    @model_validator(mode="after")
    def _check_clip(self) -> Self:
        low, high = self.clip
        if not 0 <= low <= 1 <= high:
            raise ValueError(f"clip must be a non-negative range that includes 1, got {self.clip}")
        return self

    @property
    def weight_limits(self) -> WeightLimits | None:
        """Return the limits on trajectory weights, or None if only ``clip`` limits them."""
        limits = WeightLimits(self.strength, self.normalise_mean)
        return None if limits == WeightLimits() else limits


@method("seal", curriculum={"growth": {"kind": "none"}})
def seal(settings: SEALSettings, kit: Kit) -> Method:
    """Show hints about common failures and weight advantages by failure type (arXiv 2605.24426)."""
    profile = FailureProfile(settings.profile, clip=settings.clip)
    selector = LastFailure(profile) if settings.task_weights else None
    base = replace(
        make_static(kit, native=settings.native, selector=selector),
        studies=(TurnLabels(kit.benchmark),),
        memories={"profile": profile},
    )
    if settings.schema_notes or settings.error_hints or settings.cues:
        options = {"schema_notes": settings.schema_notes, "error_hints": settings.error_hints}
        base = replace(
            base,
            studies=(*base.studies, InterfaceVersions(**options)),
            coach=InterfaceCoach(profile, **options, cues=settings.cues),
        )
    utility = settings.utility
    return base if utility == "none" else _add_weighing(base, profile, settings, utility)


def _add_weighing(
    base: Method, profile: FailureProfile, settings: SEALSettings, utility: Utility
) -> Method:
    """Return a copy of a method that also weights advantages by step labels."""
    if not isinstance(base.learner, GRPOConfig):
        raise ConfigError(
            f"SEAL reweights advantages, but a learner of kind {base.learner.kind!r} computes its "
            "own. Set learner.kind = 'pg', or method.utility = 'none'."
        )
    weighing = Weighing()
    transform = Reweighted(
        profile,
        weighing,
        utility=utility,
        clip=settings.clip,
        apply_to=settings.apply_to,
        budget=settings.weight_limits,
    )
    estimator = credit_of(base.learner).estimator
    memories = {**base.memories, "weights": weighing}
    return replace(base, credit=Credit(estimator, (transform,)), memories=memories)
