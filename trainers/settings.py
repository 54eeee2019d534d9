"""Learner settings. Reading them does not require PyTorch.

A ``[learner]`` section has a ``kind`` (``pg``, the default, ``ppo``, ``rest``, or a user-defined
learner) and its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    model_validator,
)

from coevo_gym.core.own_code import is_import_path
from coevo_gym.core.registry import LEARNERS
from coevo_gym.core.task import FrozenModel

OptimizerName = Literal["adamw", "adamw_8bit", "adamw_offload"]
"""Name of an optimiser: AdamW with its moments in fp32, in 8 bits, or in main memory."""
NEEDS_TORCHAO = "The optimizer adamw_8bit needs torchao."
OFFLOAD_NEEDS_GPU = (
    "The optimizer adamw_offload moves AdamW's moments from a GPU to main memory, but this model "
    "is on a CPU, where they are in main memory anyway. Set optimizer to adamw."
)


class LearnerSettings(FrozenModel):
    """Base class for the settings of a learner."""

    kind: str = ""
    """Learner: ``pg``, ``ppo``, ``rest``, the name of an installed learner, or your own as
    ``file.py:Class`` or ``module:Class``."""


class UnloadedSettings(LearnerSettings):
    """Settings of a user-defined learner whose class is not loaded, so their keys are unchecked."""

    model_config = ConfigDict(extra="allow")


class UpdateConfig(LearnerSettings):
    """Settings for weight updates with a clipped objective. The defaults suit the tiny policy."""

    loss: str | None = None
    """Your own loss as ``file.py:function`` or ``module:function``; None for the clipped surrogate
    with a KL penalty."""
    optimizer: OptimizerName = "adamw"
    """Storage of AdamW's two moments. ``adamw``: on the device in fp32, 8 bytes per trained weight.
    ``adamw_8bit``: on the device in 8 bits, about 2 bytes per weight, with torchao (`pip install
    '.[torchao]'`); updates differ slightly. ``adamw_offload``: in main memory, for a GPU; updates
    are those of ``adamw``, but each step copies 16 bytes per weight between GPU and main memory."""
    lr: float = Field(default=1e-3, gt=0)
    """AdamW's learning rate after warm-up; constant unless ``lr_decay`` is set."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Number of AdamW steps over which the learning rate rises linearly from ``lr /
    lr_warmup_steps`` to ``lr``; 0 for no warm-up."""
    lr_decay: Literal["none", "linear", "cosine"] = "none"
    """Learning rate schedule over the run's budget: constant (``none``), linear decay (``linear``)
    or cosine decay (``cosine``)."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end of the budget, as a fraction of ``lr``."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay rate of the moving average of the weights. The averaged weights are used for
    evaluation. Each update moves them a fraction ``1 - average`` of the way towards the trained
    weights. With 0, the trained weights themselves are evaluated."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay; with 0, AdamW is equivalent to Adam."""
    epochs: int = Field(default=4, ge=1)
    """Number of passes over each batch."""
    minibatches: int = Field(default=1, ge=1)
    """Number of optimiser steps per pass; each step uses one part of the batch."""
    minibatch_samples: int | None = Field(default=None, ge=1)
    """Number of training samples per optimiser step, instead of a fixed number of ``minibatches``.
    A sample is a choice, or a segment of tokens. The last minibatch of a pass may be smaller; its
    loss is divided as if it were full, so each sample has the same weight. A batch with fewer
    samples is a single minibatch. With ``none``, ``minibatches`` applies."""
    microbatch_tokens: int = Field(default=4096, ge=1)
    """Maximum number of tokens per forward pass; a longer sample gets its own pass. An action
    chosen from a list counts as one token. The gradient does not depend on this value."""
    clip_low: float = Field(default=0.20, gt=0, lt=1)
    """Lower clip range; probability ratios below ``1 - clip_low`` are clipped."""
    clip_high: float = Field(default=0.28, gt=0)
    """Upper clip range; probability ratios above ``1 + clip_high`` are clipped."""
    kl_coef: float = Field(default=1e-3, ge=0)
    """Weight of the KL penalty against the frozen reference policy; 0 for no penalty."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus: the entropy of the whole distribution over tokens or choices,
    averaged as the loss is; 0 for no bonus."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on the surrogate of positions with a negative advantage: it is never below
    ``dual_clip`` times the advantage, however large the probability ratio is. ``none`` for no
    bound."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are clipped."""
    importance_cap: float | None = Field(default=2.0, gt=0)
    """Upper bound on importance weights (truncated importance sampling). If the sampler differs
    from the old policy, each token's surrogate is weighted by the token's probability under the old
    policy divided by that under the sampler. None disables the weights. Samples with stripped cues
    always have weight 1."""

    @model_validator(mode="after")
    def _check_minibatches(self) -> Self:
        if self.minibatch_samples is not None and self.minibatches != 1:
            raise ValueError(
                f"minibatch_samples ({self.minibatch_samples}) and minibatches "
                f"({self.minibatches}) both split the batch; set only one of them"
            )
        return self


class GRPOConfig(UpdateConfig):
    """Settings for GRPO and its variants, which compare the rollouts of a group."""

    kind: str = "pg"
    advantage: Literal["grpo", "rloo", "gigpo"] = "grpo"
    """Baseline that a rollout is compared with: its group's mean (``grpo``) or the mean of the
    group's other rollouts (``rloo``). ``gigpo`` uses the group's mean and also compares steps taken
    in the same state."""
    states: Literal["exact", "similar"] = "exact"
    """(gigpo) Steps to compare: those with equal observations (``exact``) or with observations
    whose similarity is above 0.9 (``similar``)."""
    state_likeness: Literal["lcs", "difflib", "words"] = "lcs"
    """Similarity measure for observations: longest common subsequence of characters (``lcs``),
    matching blocks of characters (``difflib``), or longest common subsequence of words (``words``,
    the strictest measure)."""
    state_rewards: Literal["at_the_end", "earned"] = "at_the_end"
    """(gigpo) Source of step rewards: ``at_the_end`` assigns the outcome to the last step only;
    ``earned`` uses the env's reward at each step."""
    state_gamma: float = Field(default=0.95, gt=0, le=1)
    """(gigpo) Discount factor per step for the returns by which steps in the same state are
    compared."""
    outcome_weight: float = Field(default=1.0, ge=0)
    """(gigpo) Weight of the trajectory-level advantage."""
    state_weight: float = Field(default=1.0, ge=0)
    """(gigpo) Weight of the step-level advantage, which compares steps taken in the same state."""
    normalise_std: bool = True
    """True to divide advantages by the group's standard deviation (False: Dr. GRPO). RLOO never
    divides them."""
    outcome: Literal["success", "score"] = "success"
    """Reward to learn from: binary success or the benchmark's score."""
    loss_mean: Literal["token", "trajectory", "constant"] = "token"
    """Method for averaging the loss. ``token``: every sampled token has the same weight (CoEvolve),
    so a long failure outweighs a short success; ``trajectory``: every trajectory has the same
    weight (Role-Agent); ``constant``: the summed loss is divided by ``constant_tokens`` times the
    number of trajectories (Dr. GRPO)."""
    constant_tokens: int = Field(default=4096, ge=1)
    """Divisor for each trajectory's summed loss if ``loss_mean`` is ``constant``."""
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    """Handling of overlong trajectories (DAPO): ``keep`` leaves them unchanged, ``mask`` excludes
    trajectories truncated by max_tokens or context_overflow from the loss, and ``penalty``
    subtracts up to 1 from the outcome."""
    overlong_max_tokens: int = Field(default=4096, ge=1)
    """Trajectory length in sampled tokens at which the overlong penalty is 1."""
    overlong_buffer_tokens: int = Field(default=1024, ge=1)
    """Length, in tokens, of the range below ``overlong_max_tokens`` over which the overlong penalty
    rises from 0 to 1."""
    clip_high_cued: float | None = Field(default=None, gt=0)
    """Upper clip range for trajectories whose cues (guidance in the prompt) were stripped; None to
    use ``clip_high``."""
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"
    """Source of the old log-probabilities in the probability ratio: ``recorded`` uses those
    recorded by the sampler; ``recomputed`` has the learner recompute them before its first step.
    Use ``recomputed`` if the sampler's numerics differ from the learner's, or for samples from
    which cues were stripped. All tokens then get importance weights (see ``importance_cap``)."""

    @model_validator(mode="after")
    def _check_overlong_buffer(self) -> Self:
        if self.overlong_buffer_tokens > self.overlong_max_tokens:
            raise ValueError(
                f"overlong_buffer_tokens ({self.overlong_buffer_tokens}) must not exceed "
                f"overlong_max_tokens ({self.overlong_max_tokens})"
            )
        return self

    @property
    def clips_never_act(self) -> bool:
        """True if every ratio of new to old probabilities is 1, so clipping has no effect."""
        one_step = self.epochs * self.minibatches == 1 and self.minibatch_samples is None
        return self.old_logprobs == "recomputed" and one_step


CLIPS_NEVER_ACT = (
    "With recomputed log-probabilities, one epoch and one minibatch, every ratio of new to old "
    "probabilities is 1, so clip_low and clip_high have no effect. To use them, raise "
    "learner.epochs or learner.minibatches, or set learner.minibatch_samples."
)


class ImitationConfig(FrozenModel):
    """Settings for supervised fine-tuning. The defaults suit the tiny policy."""

    optimizer: OptimizerName = "adamw"
    """Storage of AdamW's two moments; see ``learner.optimizer``."""
    lr: float = Field(default=3e-3, gt=0)
    """AdamW's learning rate; there is no weight decay."""
    batch_decisions: int = Field(default=64, ge=1)
    """Decisions (for language models: training sequences) per optimiser step."""
    batch_tokens: int = Field(default=16_384, ge=1)
    """Maximum number of tokens per forward pass; a longer decision gets its own pass. An action
    chosen from a list counts as one token. Gradients are accumulated, so the result does not depend
    on this value."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Maximum norm of the gradient; None to disable clipping."""
    max_epochs: int = Field(default=200, ge=1)
    """Maximum number of passes over the demonstrations."""
    holdout: float = Field(default=0.2, ge=0, lt=1)
    """Fraction of the tasks to hold out for monitoring the loss."""
    min_improvement: float = Field(default=0.01, ge=0)
    """Minimum relative decrease in the monitored loss that counts as progress."""
    patience_epochs: int = Field(default=3, ge=1)
    """Number of epochs without progress after which training stops."""


class PPOConfig(UpdateConfig):
    """Settings for PPO, which estimates advantages with a value head.

    Old log-probabilities are the recorded values, except for tokens sampled with older weights.
    """

    kind: str = "ppo"
    outcome: Literal["success", "score"] = "success"
    """Reward to learn from: binary success or the benchmark's score."""
    level: Literal["turn", "token"] = "turn"
    """Granularity of values and advantages: one per decision, shared by all its tokens (``turn``),
    or one per token (``token``)."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor per decision or token, depending on ``level``."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalised advantage estimation: 1 uses only observed rewards; 0 bootstraps from
    the value estimates (one-step TD)."""
    value_clip: float = Field(default=0.5, gt=0)
    """Maximum change in a value estimate per update; larger changes are clipped."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    value_lr: float | None = Field(default=None, gt=0)
    """AdamW's learning rate for the value head; None uses 1e-2 for the tiny policy and 1e-5 for
    language models."""


class ImproveConfig(ImitationConfig):
    """Settings for imitating the policy's own rollouts."""

    max_epochs: int = Field(default=20, ge=1)
    """Maximum number of passes over the rollouts."""


class RestConfig(LearnerSettings):
    """Settings for ReST, which imitates the policy's own best rollouts."""

    kind: str = "rest"
    grow_steps: int = Field(default=4, ge=1)
    """Number of steps that collect rollouts before each policy-improvement phase."""
    thresholds: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        default=(0.0, 0.5, 0.8), min_length=1
    )
    """Rising score thresholds, one per policy-improvement step. Each step imitates the rollouts
    that score above the step's threshold. A single threshold of 0.5 amounts to rejection-sampling
    fine-tuning (RFT)."""
    improve_from: Literal["start", "last"] = "last"
    """Starting point of a policy-improvement step: the policy that sampled the rollouts (``start``)
    or the result of the previous step (``last``)."""
    imitation: ImproveConfig = ImproveConfig()
    """Settings for each policy-improvement step."""

    @model_validator(mode="after")
    def _require_rising_thresholds(self) -> Self:
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError(f"thresholds must increase, got {list(self.thresholds)}")
        return self


OWN = ":"
"""Tag of the settings of all user-defined learners."""


def is_own_learner(kind: str) -> bool:
    """Return True for an installed learner's name or for any import path, even an invalid one."""
    return is_import_path(kind) or kind in set(LEARNERS.names()) - set(LEARNERS.built_in)


def _settings_tag(data: Any) -> str | None:
    """Return the tag for a learner's settings: its ``kind``, or :data:`OWN`."""
    kind = data.get("kind", "pg") if isinstance(data, Mapping) else getattr(data, "kind", None)
    return OWN if kind is not None and is_own_learner(str(kind)) else kind and str(kind)


def _to_unloaded_settings(data: Any) -> Any:
    return UnloadedSettings(**data) if isinstance(data, Mapping) else data


LearnerConfig = Annotated[
    Annotated[GRPOConfig, Tag("pg")]
    | Annotated[PPOConfig, Tag("ppo")]
    | Annotated[RestConfig, Tag("rest")]
    | Annotated[SerializeAsAny[LearnerSettings], BeforeValidator(_to_unloaded_settings), Tag(OWN)],
    Discriminator(_settings_tag),
]
"""Settings for any learner, discriminated by ``kind`` (default: ``pg``).

Settings of a user-defined learner are :class:`UnloadedSettings` until the learner is loaded.
"""
