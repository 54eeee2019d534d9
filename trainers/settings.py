"""Settings of the learners, apart from them: reading a config needs no PyTorch.

A ``[learner]`` section has a ``kind``, and the keys of that learner: ``pg``, which it is unless it
says otherwise, ``ppo`` or ``rest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from coevo_gym.core.task import FrozenModel


class UpdateConfig(FrozenModel):
    """How a clipped surrogate changes the weights; the defaults suit the tiny policy.

    Attributes:
        lr: AdamW's learning rate, the same in every step after the warm-up unless it decays.
        lr_warmup_steps: steps of AdamW over which the learning rate rises in a straight line, from
            ``lr / lr_warmup_steps`` in the first to ``lr`` in the last; 0 for none.
        lr_decay: how the learning rate falls while the run's budget is spent: not at all
            (``none``), in a straight line (``linear``), or by half a cosine (``cosine``).
        lr_floor: share of the learning rate that is left when the budget is spent.
        average: the weights that are evaluated are a moving average of those under training, which
            each update moves by ``1 - average`` of the way to them; 0 evaluates those themselves.
        weight_decay: AdamW's; 0 makes it Adam.
        epochs: passes over each batch.
        minibatches: optimiser steps per pass; the batch is split by choice, or by segment.
        microbatch_tokens: most tokens in one forward pass, at least one sample; a choice counts as
            one. The gradient is the same.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        kl_coef: weight of the KL term towards the frozen reference; 0 leaves the reference out.
        max_grad_norm: the gradient's norm is clipped there.
        importance_cap: the surrogate of each token that the old policy has not sampled is weighted
            by the old policy's probability over the sampler's, at most this (truncated importance
            sampling); None leaves that out. A sample from which cues were stripped has weight 1.
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
    """Settings of the learner that compares the rollouts of a group: GRPO and its relatives.

    Attributes:
        kind: names this learner.
        advantage: a rollout is judged against its group's mean (``grpo``), against the mean of the
            others (``rloo``), or step by step against steps in the same state too (``gigpo``).
        states: with ``gigpo``, steps are compared where their observations are the same (``exact``)
            or alike (``similar``: by more than 0.9).
        state_likeness: what alike observations have in common: characters in order (``lcs``),
            blocks of them (``difflib``), or ``words`` in order, the sharper scale.
        state_rewards: with ``gigpo``, the outcome is earned ``at_the_end``, or each step earns
            what the env gave for it (``earned``).
        outcome_weight: with ``gigpo``, weight of the trajectory's advantage.
        state_weight: with ``gigpo``, weight of the step's advantage.
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
        clip_high_cued: ``clip_high`` of the trajectories whose cues were stripped; None for the
            same as for all others.
        old_logprobs: the old policy of the ratio: what the sampler ``recorded``, or what the
            learner computes itself before its first step (``recomputed``), for a sampler whose
            numerics differ: all tokens are weighted by ``importance_cap`` then. Samples from which
            cues were stripped can only be ``recomputed``.
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
        batch_tokens: most tokens in one forward pass, at least one decision; a choice counts as
            one. Gradients of several passes are accumulated, and are the same as those of one.
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


class PPOConfig(UpdateConfig):
    """Settings of the learner with a value head, which needs no group to compare with.

    Old log-probabilities are those that the sampler recorded, but for what older weights sampled.

    Attributes:
        kind: names this learner.
        outcome: what is learned from: the binary success or the benchmark's score.
        level: one value and one advantage for each decision, shared by its tokens (``turn``), or
            for each ``token``.
        gamma: discount from one decision, or token, to the next.
        lam: lambda of generalised advantage estimation: 1 trusts what was earned, 0 the values.
        value_clip: values may move by this much from what they were before the update.
        value_weight: weight of the value loss.
        value_lr: AdamW's learning rate of the value head; None for what suits the policy.
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
    """Settings of imitating one's own rollouts: fewer passes, since there will be others.

    Attributes:
        max_epochs: most passes over the rollouts.
    """

    max_epochs: int = Field(default=20, ge=1)


class RestConfig(FrozenModel):
    """Settings of the learner that imitates the best of its own rollouts.

    Attributes:
        kind: names this learner.
        grow_steps: steps of the loop whose rollouts are gathered before they are learned from.
        thresholds: each Improve imitates rollouts with a score above one of these, one Improve
            after the other; a single one of 0.5 makes rejection-sampling fine-tuning (RFT).
        improve_from: whether an Improve begins at the policy that the rollouts were sampled from
            (``start``), or goes on from the one before (``last``).
        imitation: settings of each Improve.
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
    """Which learner a section is about."""
    if isinstance(data, Mapping):
        return str(data.get("kind", "pg"))
    return getattr(data, "kind", None)


LearnerConfig = Annotated[
    Annotated[GRPOConfig, Tag("pg")]
    | Annotated[PPOConfig, Tag("ppo")]
    | Annotated[RestConfig, Tag("rest")],
    Discriminator(_kind),
]
"""Settings of any learner, told apart by ``kind``; without one it is ``pg``."""
