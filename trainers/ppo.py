"""PPO: a learner with a value head that predicts returns.

PPO does not compare rollouts in a group: each step of a trajectory is compared with the value that
the head predicts from the policy's hidden states. The head belongs to the learner, so it does not
change the policy. An update works like GRPO's, with a value loss added to the clipped surrogate.

Sources: PPO (arXiv 1707.06347), GAE (arXiv 1506.02438). One value for each decision of a language
model, shared by its tokens, is our choice. So are gamma 1, lambda 0.95 and the clip and weight of
the value loss, because papers that compare with PPO do not report them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group, Sample, Trajectory
from coevo_gym.provision import explain_missing
from coevo_gym.trainers.advantages import Estimate, token_estimate, turn_estimate
from coevo_gym.trainers.credit import Outcome
from coevo_gym.trainers.segments import count_sampled, n_sampled
from coevo_gym.trainers.settings import PPOConfig
from coevo_gym.trainers.update.batch import (
    Batch,
    batch_metrics,
    batch_of,
    check_no_stripped_cues,
    count_with_gradient,
    flatten_trajectories,
    n_steps_per_pass,
    pad_rows,
    policy_outputs,
)
from coevo_gym.trainers.update.importance import recompute_logprobs, stale_mask
from coevo_gym.trainers.update.learner import (
    LearnablePolicy,
    Objective,
    SurrogateLearner,
    Terms,
    microbatch_loss,
)
from coevo_gym.trainers.update.ranks import split_rows

with explain_missing("Training needs PyTorch.", "train"):
    import torch
    from torch import Tensor


class Valued(LearnablePolicy, Protocol):
    """A policy that exposes its hidden states to a value head.

    Attributes:
        value_lr: suitable learning rate for the value head.
    """

    value_lr: float

    def make_value_head(self) -> torch.nn.Module:
        """Create a value head that initially predicts 0, without drawing random numbers."""
        ...

    def logprobs_and_values(
        self, samples: Sequence[Sample], head: torch.nn.Module
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what ``logprobs`` returns, and the (B, T) values at the sampled positions."""
        ...


def value_loss(
    values: Tensor,
    old: Tensor,
    targets: Tensor,
    mask: Tensor,
    *,
    clip: float,
    total: float | None = None,
) -> Tensor:
    """Compute half the mean squared value error, using the larger of the plain and clipped errors.

    Args:
        values: (B, T) values under the current weights.
        old: (B, T) values before the update.
        targets: (B, T) value targets.
        mask: (B, T) bool, True for positions with a value.
        clip: maximum difference of clipped values from ``old``.
        total: divisor of the sum; default: the number of these samples' values.
    """
    clipped = old + (values - old).clamp(-clip, clip)
    worse = torch.maximum((values - targets).square(), (clipped - targets).square())
    count = mask.sum().clamp(min=1) if total is None else total
    return 0.5 * worse.masked_fill(~mask, 0.0).sum() / count


def whiten(advantages: Tensor) -> Tensor:
    """Normalise (N,) advantages to mean 0 and sample variance 1, unless N is less than 2.

    Differences far below 1e-4 stay small, because 1e-8 is added to the variance.
    """
    if len(advantages) < 2:
        return advantages
    return (advantages - advantages.mean()) * torch.rsqrt(advantages.var() + 1e-8)


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float:
    """Return the share of the targets' variance that the values explain.

    Returns:
        1 for perfect values, 0 for values no better than a constant, negative for worse values; 0
        if all targets are equal.
    """
    wanted = np.asarray(targets)
    spread = wanted.var() if len(wanted) else 0.0
    return float(1.0 - (wanted - np.asarray(values)).var() / spread) if spread > 0 else 0.0


class _Values(NamedTuple):
    """Inputs to the value loss: one row per sample, and the divisor for the summed loss."""

    old: Sequence[Tensor]
    targets: Sequence[Tensor]
    valued: Sequence[Tensor]
    total: float


class PPO(SurrogateLearner):
    """A learner that trains on each trajectory separately. An update makes one policy version.

    The seed determines the order of minibatches.

    Raises:
        ConfigError: if the policy does not expose its hidden states.
    """

    policy: Valued
    settings = PPOConfig
    config: PPOConfig

    def __init__(
        self, policy: LearnablePolicy, config: PPOConfig | None = None, *, seed: int = 0
    ) -> None:
        config, valued = config or PPOConfig(), _require_value_support(policy)
        self.head = valued.make_value_head()
        value_lr = config.value_lr or valued.value_lr
        super().__init__(valued, config, (list(self.head.parameters()), value_lr), seed=seed)
        self._known: dict[int, tuple[Trajectory, list[float]]] = {}  # of this policy version

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """Return GAE advantages: one per step, or one per token if the level is ``token``."""
        estimates = iter(
            self._estimate_advantages([t for group in groups for t in group.trajectories])
        )
        return [[next(estimates).advantage for _ in group.trajectories] for group in groups]

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Incomplete or too stale groups are skipped and counted. Advantages are as in
        :meth:`coevo_gym.trainers.grpo.GRPO.update`; they are normalised over the batch to mean 0
        and variance 1.

        Returns:
            Every loss term, averaged over the steps that the optimiser took, the variance explained
            by the values before the update, and counts.

        Raises:
            ValueError, TrainingDiverged: as :meth:`coevo_gym.trainers.grpo.GRPO.update`.
            ConfigError: if cues were stripped, because PPO uses the recorded log-probabilities.
        """
        config = self.config
        batch, metrics = batch_of(groups, advantages, config, judge=self.advantages)
        if not batch.samples:
            return metrics | {"decisions": 0.0}
        check_no_stripped_cues(
            batch, "Choose learner.kind = 'pg' with old_logprobs = 'recomputed'."
        )
        values, explained = self._prepare_value_loss(batch)
        objective = self._make_objective(batch)
        lengths = batch.lengths.tolist()
        advantage = torch.split(whiten(torch.cat([*batch.advantage])), lengths)
        learned = batch._replace(advantage=advantage)
        metrics["tokens_with_gradient"] = count_with_gradient(learned)

        def loss(part: NDArray[np.int64]) -> Terms:
            with_entropy = bool(config.entropy_coef)
            outputs = policy_outputs(self.policy, batch, part, head=self.head, entropy=with_entropy)
            mask, now = outputs.mask, outputs.values
            assert now is not None
            terms, drift = microbatch_loss(objective, learned, part, outputs, config, self.loss)
            error = value_loss(
                now,
                pad_rows(values.old, part, now),
                pad_rows(values.targets, part, now),
                pad_rows(values.valued, part, mask),
                clip=config.value_clip,
                total=values.total,
            )
            total = terms["loss"] + config.value_weight * error
            return Terms(terms | {"loss": total, "value_loss": error}, drift)

        metrics |= self._run_epochs(learned, objective, loss)
        self._known.clear()
        return metrics | {"explained_variance": explained} | batch_metrics(batch)

    def values(self, samples: Sequence[Sample]) -> Tensor:
        """Return (B, T) value estimates at the sampled positions, without gradients."""
        with torch.no_grad():
            return self.policy.logprobs_and_values(samples, self.head)[2]

    def _estimate_advantages(self, trajectories: Sequence[Trajectory]) -> list[Estimate]:
        estimate = turn_estimate if self.config.level == "turn" else token_estimate
        outcome = Outcome(self.config.outcome)
        estimates = []
        for trajectory, values in zip(trajectories, self._get_values(trajectories), strict=True):
            steps = trajectory.steps
            lengths = [0 if step.decision is None else n_sampled(step.decision) for step in steps]
            rewards = [0.0] * (len(steps) - 1) + [outcome(trajectory)] if steps else []
            settings = {"gamma": self.config.gamma, "lam": self.config.lam}
            estimates.append(estimate(rewards, lengths, values, **settings))
        return estimates

    def _get_values(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Return value estimates at each trajectory's sampled positions, using a cache."""
        new = [t for t in trajectories if id(t) not in self._known]
        batch = flatten_trajectories(new, [0.0] * len(new))
        flat: list[float] = []
        rows = np.arange(len(batch.samples))
        for part in (
            split_rows(rows, batch.tokens, self.config.microbatch_tokens) if len(rows) else ()
        ):
            values = self.values([batch.samples[i] for i in part])
            for row, n in zip(values.tolist(), batch.lengths[part].tolist(), strict=True):
                flat += row[:n]
        iterator = iter(flat)
        for trajectory in new:
            own = [next(iterator) for _ in range(count_sampled(trajectory))]
            self._known[id(trajectory)] = trajectory, own
        return [self._known[id(t)][1] for t in trajectories]

    def _prepare_value_loss(self, batch: Batch) -> tuple[_Values, float]:
        """Return the value loss's inputs, and the share of variance explained by the values."""
        old, targets, valued = (
            list(chain.from_iterable(rows))
            for rows in zip(
                *(e[1:] for e in self._estimate_advantages(batch.trajectories)), strict=True
            )
        )
        known = [place for place, there in enumerate(valued) if there]
        explained = explained_variance([old[i] for i in known], [targets[i] for i in known])
        lengths = batch.lengths.tolist()
        rows = _Values(
            torch.split(torch.tensor(old), lengths),
            torch.split(torch.tensor(targets), lengths),
            torch.split(torch.tensor(valued), lengths),
            len(known) / n_steps_per_pass(self.config, len(batch.samples)),
        )
        return rows, explained

    def _make_objective(self, batch: Batch) -> Objective:
        """Return the loss inputs shared by an update's steps. The loss is a mean over positions."""
        config, n_samples = self.config, len(batch.samples)
        stale = stale_mask(batch, self.version)
        return Objective(
            old=recompute_logprobs(self.policy, batch, stale, config.microbatch_tokens),
            reference=self._reference_logprobs(batch),
            corrected=stale,
            idle=torch.zeros(n_samples, dtype=torch.bool),
            weight=torch.ones(n_samples),
            total=float(batch.lengths.sum()) / n_steps_per_pass(config, n_samples),
        )

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return the base learner's state and the value head."""
        head = {name: w.detach().to("cpu", copy=True) for name, w in self.head.state_dict().items()}
        return super().state_dict(reference=reference) | {"head": head}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`. Load the policy's own state first."""
        self.head.load_state_dict(state["head"])
        self._known.clear()
        return super().load_state_dict(state)


def _require_value_support(policy: Any) -> Valued:
    if not hasattr(policy, "logprobs_and_values"):
        raise ConfigError(
            f"{type(policy).__name__} does not expose hidden states for PPO's value head. Set "
            "policy.kind to 'tiny', 'transformers' or 'vllm', or set learner.kind = 'pg'."
        )
    result: Valued = policy
    return result
