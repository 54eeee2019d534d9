"""Settings of the learners, in a separate module so that reading a config needs no PyTorch.

A ``[learner]`` section has a ``kind`` (``pg``, ``ppo`` or ``rest``; default: ``pg``) and the keys
of that learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from coevo_gym.core.task import FrozenModel


class UpdateConfig(FrozenModel):
    """Settings for weight updates with a clipped surrogate; the defaults suit the tiny policy.

    Attributes:
        lr: AdamW's learning rate after warm-up; constant unless ``lr_decay`` is set.
        lr_warmup_steps: AdamW steps over which the learning rate rises linearly from
            ``lr / lr_warmup_steps`` in the first step to ``lr`` in the last; 0 for no warm-up.
        lr_decay: decay of the learning rate as the run's budget is spent: constant (``none``),
            linear (``linear``) or half a cosine (``cosine``).
        lr_floor: share of the learning rate that remains when the budget is spent.
        average: decay of a moving average of the trained weights, used for evaluation. Each update
            moves the average by ``1 - average`` of the distance to the trained weights; 0 evaluates
            the trained weights.
        weight_decay: AdamW's weight decay; 0 makes it Adam.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass; the batch is split by choice or by segment.
        microbatch_tokens: maximum tokens per forward pass (at least one sample); a choice counts as
            one. The gradient does not depend on this value.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        kl_coef: weight of the KL term towards the frozen reference; 0 disables the reference.
        max_grad_norm: maximum norm of the gradient; larger gradients are clipped.
        importance_cap: upper bound of the importance weight (truncated importance sampling). The
            surrogate of each token sampled by another policy than the old one is weighted by the
            probability under the old policy over the probability under the sampler. None disables
            the weights. Samples from which cues were stripped have weight 1.
    """

    lr: float = Field(default=1e-3, gt=0)
    lr_warmup_steps: int = Field(default=0, ge=0)
    lr_decay: Literal["none", "linear", "cosine"] = "none"
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    average: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    epochs: int = Field(default=4, ge=1)
    minibatches: int = Field(default=1, ge=1)
    microbatch_tokens: int = Field(default=4096, ge=1)
    clip_low: float = Field(default=0.20, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    kl_coef: float = Field(default=1e-3, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    importance_cap: float | None = Field(default=2.0, gt=0)


class GRPOConfig(UpdateConfig):
    """Settings of the learner that compares the rollouts of a group: GRPO and variants.

    Attributes:
        kind: name of this learner.
        advantage: baseline for a rollout: its group's mean (``grpo``), the mean of the other
            rollouts (``rloo``), or the group's mean plus a comparison of steps in the same state
            (``gigpo``).
        states: (gigpo) steps are compared if their observations are equal (``exact``) or have a
            similarity above 0.9 (``similar``).
        state_likeness: similarity measure for observations: characters in order (``lcs``), blocks
            of characters (``difflib``), or words in order (``words``), which separates observations
            more sharply.
        state_rewards: (gigpo) the last step earns the outcome (``at_the_end``), or each step earns
            its env reward (``earned``).
        outcome_weight: (gigpo) weight of the trajectory's advantage.
        state_weight: (gigpo) weight of the step's advantage.
        normalise_std: divide advantages by the group's standard deviation (False: Dr. GRPO). RLOO
            never divides.
        outcome: reward to learn from: the binary success or the benchmark's score.
        loss_mean: averaging of the loss. ``token``: every sampled token has the same weight
            (CoEvolve), so a long failure outweighs a short success; ``trajectory``: every
            trajectory has the same weight (Role-Agent); ``constant``: the sum is divided by
            ``constant_tokens`` per trajectory (Dr. GRPO).
        constant_tokens: divisor per trajectory for ``loss_mean = "constant"``.
        overlong: treatment of long trajectories (DAPO): ``keep`` them unchanged, ``mask`` those
            that ended by max_tokens or context_overflow out of the loss, or subtract a ``penalty``
            of up to 1 from the outcome.
        overlong_max_tokens: number of sampled tokens in a trajectory from which the penalty is 1.
        overlong_buffer_tokens: number of tokens below that over which the penalty rises from 0.
        clip_high_cued: ``clip_high`` for trajectories whose cues were stripped; None to use
            ``clip_high``.
        old_logprobs: source of the ratio's old log-probabilities: as ``recorded`` by the sampler,
            or ``recomputed`` by the learner before its first step. The latter suits a sampler with
            different numerics; all tokens are then weighted by ``importance_cap``. Samples from
            which cues were stripped require ``recomputed``.
    """

    kind: Literal["pg"] = "pg"
    advantage: Literal["grpo", "rloo", "gigpo"] = "grpo"
    states: Literal["exact", "similar"] = "exact"
    state_likeness: Literal["lcs", "difflib", "words"] = "lcs"
    state_rewards: Literal["at_the_end", "earned"] = "at_the_end"
    outcome_weight: float = Field(default=1.0, ge=0)
    state_weight: float = Field(default=1.0, ge=0)
    normalise_std: bool = True
    outcome: Literal["success", "score"] = "success"
    loss_mean: Literal["token", "trajectory", "constant"] = "token"
    constant_tokens: int = Field(default=4096, ge=1)
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    overlong_max_tokens: int = Field(default=4096, ge=1)
    overlong_buffer_tokens: int = Field(default=1024, ge=1)
    clip_high_cued: float | None = Field(default=None, gt=0)
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"

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
        """True if every ratio of new to old probabilities is 1, so that clipping has no effect."""
        return self.old_logprobs == "recomputed" and self.epochs * self.minibatches == 1


CLIPS_NEVER_ACT = (
    "With recomputed log-probabilities, one epoch and one minibatch every ratio of new to old "
    "probabilities is 1: clip_low and clip_high never act. Raise learner.epochs or "
    "learner.minibatches if they should."
)


class ImitationConfig(FrozenModel):
    """Settings of supervised fine-tuning; the defaults suit the tiny policy.

    Attributes:
        lr: Adam's learning rate; there is no weight decay.
        batch_decisions: number of choices, or language model segments, per optimiser step.
        batch_tokens: maximum tokens per forward pass (at least one decision); a choice counts as
            one. Gradients of several passes are accumulated, so the result does not depend on it.
        max_grad_norm: maximum norm of the gradient; None to disable clipping.
        max_epochs: maximum passes over the demonstrations.
        holdout: share of the tasks held out to watch the loss.
        min_improvement: relative decrease of the watched loss that counts as progress.
        patience_epochs: number of epochs without progress after which training stops.
    """

    lr: float = Field(default=3e-3, gt=0)
    batch_decisions: int = Field(default=64, ge=1)
    batch_tokens: int = Field(default=16_384, ge=1)
    max_grad_norm: float | None = Field(default=None, gt=0)
    max_epochs: int = Field(default=200, ge=1)
    holdout: float = Field(default=0.2, ge=0, lt=1)
    min_improvement: float = Field(default=0.01, ge=0)
    patience_epochs: int = Field(default=3, ge=1)


class PPOConfig(UpdateConfig):
    """Settings of the learner with a value head, which needs no group to compare with.

    Old log-probabilities are the recorded ones, except for tokens sampled by older weights.

    Attributes:
        kind: name of this learner.
        outcome: reward to learn from: the binary success or the benchmark's score.
        level: granularity of values and advantages: one per decision, shared by its tokens
            (``turn``), or one per ``token``.
        gamma: discount from one decision, or token, to the next.
        lam: lambda of generalised advantage estimation. 1: rely on earned rewards only; 0: rely on
            the predicted values.
        value_clip: maximum change of a value within an update that the value loss counts.
        value_weight: weight of the value loss.
        value_lr: AdamW's learning rate for the value head; None for the policy's default.
    """

    kind: Literal["ppo"] = "ppo"
    outcome: Literal["success", "score"] = "success"
    level: Literal["turn", "token"] = "turn"
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    value_clip: float = Field(default=0.5, gt=0)
    value_weight: float = Field(default=0.5, ge=0)
    value_lr: float | None = Field(default=None, gt=0)


class ImproveConfig(ImitationConfig):
    """Settings for imitating the policy's own rollouts, with fewer epochs than for references.

    Attributes:
        max_epochs: maximum passes over the rollouts.
    """

    max_epochs: int = Field(default=20, ge=1)


class RestConfig(FrozenModel):
    """Settings of the learner that imitates the best of its own rollouts.

    Attributes:
        kind: name of this learner.
        grow_steps: number of loop steps whose rollouts are collected before each Improve phase.
        thresholds: score thresholds, one Improve step each, in order; an Improve step imitates the
            rollouts with a score above its threshold. A single threshold of 0.5 is
            rejection-sampling fine-tuning (RFT).
        improve_from: starting point of an Improve step: the policy that sampled the rollouts
            (``start``) or the result of the previous Improve step (``last``).
        imitation: settings of each Improve step.
    """

    kind: Literal["rest"] = "rest"
    grow_steps: int = Field(default=4, ge=1)
    thresholds: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        default=(0.0, 0.5, 0.8), min_length=1
    )
    improve_from: Literal["start", "last"] = "last"
    imitation: ImproveConfig = ImproveConfig()

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError(f"thresholds must rise, actual: {list(self.thresholds)}")
        return self


def _kind(data: Any) -> str | None:
    """Return the ``kind`` of a learner section."""
    if isinstance(data, Mapping):
        return str(data.get("kind", "pg"))
    return getattr(data, "kind", None)


LearnerConfig = Annotated[
    Annotated[GRPOConfig, Tag("pg")]
    | Annotated[PPOConfig, Tag("ppo")]
    | Annotated[RestConfig, Tag("rest")],
    Discriminator(_kind),
]
"""Settings of any learner, discriminated by ``kind`` (default: ``pg``)."""
