"""Settings of the learners, apart from them: reading a config needs no PyTorch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.task import FrozenModel


class GRPOConfig(FrozenModel):
    """Settings of the learner; the defaults suit the tiny policy.

    Attributes:
        lr: AdamW's learning rate, the same in every step after the warm-up.
        lr_warmup_steps: steps of AdamW over which the learning rate rises in a straight line, from
            ``lr / lr_warmup_steps`` in the first to ``lr`` in the last; 0 for none.
        weight_decay: AdamW's; 0 makes it Adam.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass; the batch is split by choice, or by segment.
        microbatch_tokens: most tokens in one forward pass, at least one sample; a choice counts as
            one. The gradient is the same.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        kl_coef: weight of the KL term towards the frozen reference; 0 leaves the reference out.
        max_grad_norm: the gradient's norm is clipped there.
        advantage: a rollout is judged against its group's mean (``grpo``), against the mean of the
            others (``rloo``), or step by step against steps in the same state too (``gigpo``).
        normalise_std: divide advantages by the group's standard deviation (False: Dr. GRPO); RLOO
            never divides.
        outcome: what is learned from: the binary success or the benchmark's score.
        loss_mean: what weighs the same in the loss: every sampled ``token`` (CoEvolve), so that a
            long failure outweighs a short success, or every ``trajectory`` (Role-Agent);
            ``constant`` divides the sum by ``constant_tokens`` a trajectory (Dr. GRPO).
        constant_tokens: of ``loss_mean = "constant"``.
        overlong: what becomes of long trajectories (DAPO): ``keep`` them as they are, ``mask`` out
            of the loss those that ended by max_tokens or context_overflow, or take a ``penalty``
            of up to 1 from the outcome.
        overlong_max_tokens: sampled tokens of a trajectory from which the whole penalty is due.
        overlong_buffer_tokens: over so many tokens below that the penalty grows from 0.
        old_logprobs: the old policy of the ratio: what the sampler ``recorded``, or what the
            learner computes itself before its first step (``recomputed``), for a sampler whose
            numerics differ.
        importance_cap: with recomputed ones, the surrogate of each token is weighted by the
            learner's probability over the sampler's, at most this; None leaves that out.
    """

    lr: float = Field(default=1e-3, gt=0)
    lr_warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    epochs: int = Field(default=4, ge=1)
    minibatches: int = Field(default=1, ge=1)
    microbatch_tokens: int = Field(default=4096, ge=1)
    clip_low: float = Field(default=0.20, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    kl_coef: float = Field(default=1e-3, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    advantage: Literal["grpo", "rloo", "gigpo"] = "grpo"
    normalise_std: bool = True
    outcome: Literal["success", "score"] = "success"
    loss_mean: Literal["token", "trajectory", "constant"] = "token"
    constant_tokens: int = Field(default=4096, ge=1)
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    overlong_max_tokens: int = Field(default=4096, ge=1)
    overlong_buffer_tokens: int = Field(default=1024, ge=1)
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"
    importance_cap: float | None = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.overlong_buffer_tokens > self.overlong_max_tokens:
            raise ValueError(
                f"overlong_buffer_tokens ({self.overlong_buffer_tokens}) must not exceed "
                f"overlong_max_tokens ({self.overlong_max_tokens})"
            )
        return self

    @property
    def clips_never_act(self) -> bool:
        """Whether every ratio of new to old probabilities is 1, so that nothing can be clipped."""
        return self.old_logprobs == "recomputed" and self.epochs * self.minibatches == 1


CLIPS_NEVER_ACT = (
    "With recomputed log-probabilities, one epoch and one minibatch every ratio of new to old "
    "probabilities is 1: clip_low and clip_high never act. Raise learner.epochs or "
    "learner.minibatches if they should."
)


class ImitationConfig(FrozenModel):
    """Settings of supervised fine-tuning; the defaults suit the tiny policy.

    Attributes:
        lr: Adam's learning rate; it decays no weights.
        batch_decisions: choices, or segments of a language model, in one step of the optimiser.
        batch_tokens: most tokens in one forward pass; a choice counts as one. Gradients of several
            passes are accumulated, and are the same as those of one.
        max_grad_norm: the gradient's norm is clipped there; None for no clipping.
        max_epochs: most passes over the demonstrations.
        holdout: share of the tasks that are watched, not trained on.
        min_improvement: relative fall of the watched loss that counts as progress.
        patience_epochs: the loss has converged after so many epochs without progress.
    """

    lr: float = Field(default=3e-3, gt=0)
    batch_decisions: int = Field(default=64, ge=1)
    batch_tokens: int = Field(default=16_384, ge=1)
    max_grad_norm: float | None = Field(default=None, gt=0)
    max_epochs: int = Field(default=200, ge=1)
    holdout: float = Field(default=0.2, ge=0, lt=1)
    min_improvement: float = Field(default=0.01, ge=0)
    patience_epochs: int = Field(default=3, ge=1)
