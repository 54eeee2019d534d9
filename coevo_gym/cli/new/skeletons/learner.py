"""A learner whose loss bounds the weights of samples instead of clipping their gradients.

Train with it, on the command line or in a run's settings::

    coevo train quickstart --set learner=FOLDER/newlearner.py:Newlearner

    [learner]
    kind = "newlearner.py:Newlearner"  # relative to the settings file
    max_ratio = 2.0

GRPO, its base class, turns episodes into samples with advantages, takes the optimiser steps, and
saves the state. ``python newlearner.py`` checks that it trains and resumes.

Source: CISPO in MiniMax-M1 (arXiv 2506.13585).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from coevo_gym.methods.contract import assert_learner_contract
from coevo_gym.trainers.grpo import GRPO
from coevo_gym.trainers.settings import GRPOConfig
from coevo_gym.trainers.update.loss import LossInputs, k3


class NewlearnerSettings(GRPOConfig):
    """Settings for this learner, set as ``learner.KEY``, in addition to those of ``pg``."""

    max_ratio: float = Field(default=2.0, gt=1)
    """Upper bound on the ratio of new to old probabilities that weights a sampled token."""


class Newlearner(GRPO):
    """A learner with its own loss."""

    settings = NewlearnerSettings
    config: NewlearnerSettings

    def loss(self, inputs: LossInputs) -> Mapping[str, Tensor]:
        """Return the terms of the loss by name. The term ``loss`` is minimised; all are logged."""
        weight = inputs.ratio.detach().clamp(max=self.config.max_ratio) * inputs.importance
        policy_loss = -inputs.mean(weight * inputs.advantage * inputs.logp)
        kl = inputs.mean(k3(inputs.logp, inputs.ref_logp))
        loss = policy_loss + self.config.kl_coef * kl
        return {"loss": loss, "policy_loss": policy_loss, "kl": kl}


if __name__ == "__main__":
    assert_learner_contract(Newlearner)
    print("newlearner keeps the contract of a learner.")
