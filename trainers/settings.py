"""Settings of the learners, apart from them: reading a config needs no PyTorch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.task import FrozenModel


class GRPOConfig(FrozenModel):
    """Settings of the learner; the defaults suit the tiny policy.

    Attributes:
        lr: Adam's learning rate.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass.
        microbatch_decisions: most decisions in one forward pass; the gradient is the same.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        kl_coef: weight of the KL term towards the frozen reference; 0 leaves the reference out.
        max_grad_norm: the gradient's norm is clipped there.
        normalise_std: divide advantages by the group's standard deviation (False: Dr. GRPO).
        outcome: what is learned from: the binary success or the benchmark's score.
        loss_mean: what weighs the same in the loss: every sampled ``token`` (CoEvolve), so that a
            long failure outweighs a short success, or every ``trajectory`` (Role-Agent).
    """

    lr: float = Field(default=1e-3, gt=0)
    epochs: int = Field(default=4, ge=1)
    minibatches: int = Field(default=1, ge=1)
    microbatch_decisions: int = Field(default=4096, ge=1)
    clip_low: float = Field(default=0.20, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    kl_coef: float = Field(default=1e-3, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    normalise_std: bool = True
    outcome: Literal["success", "score"] = "success"
    loss_mean: Literal["token", "trajectory"] = "token"


class ImitationConfig(FrozenModel):
    """Settings of the warm-up.

    Attributes:
        lr: Adam's learning rate.
        batch_decisions: decisions in one step of the optimiser.
        max_epochs: most passes over the demonstrations.
        holdout: share of the tasks that are watched, not trained on.
        min_improvement: relative fall of the watched loss that counts as progress.
        patience_epochs: the loss has converged after so many epochs without progress.
    """

    lr: float = Field(default=3e-3, gt=0)
    batch_decisions: int = Field(default=64, ge=1)
    max_epochs: int = Field(default=200, ge=1)
    holdout: float = Field(default=0.2, ge=0, lt=1)
    min_improvement: float = Field(default=0.01, ge=0)
    patience_epochs: int = Field(default=3, ge=1)
