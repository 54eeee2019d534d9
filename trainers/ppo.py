"""PPO: a value head says what to expect, and what comes otherwise is learned from.

It needs no group to compare with: a trajectory is judged step by step against what the policy's
own hidden states foretold. The head belongs to the learner, so the policy is the same with it and
without.

Sources: PPO (arXiv 1707.06347), GAE (arXiv 1506.02438). One value for each decision of a language
model, shared by its tokens, is our choice; so are gamma 1, lambda 0.95 and the clip and weight of
the value loss, of which the papers that compare with PPO print none.
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
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.advantages import Estimate, token_estimate, turn_estimate
from coevo_gym.trainers.credit import Outcome
from coevo_gym.trainers.grpo import Learnable
from coevo_gym.trainers.segments import n_sampled
from coevo_gym.trainers.settings import PPOConfig
from coevo_gym.trainers.update.average import averaged
from coevo_gym.trainers.update.batch import (
    Batch,
    batch_metrics,
    check_positions,
    check_recorded,
    evaluated,
    flatten,
    group_metrics,
    of_usable,
    padded,
    parts,
)
from coevo_gym.trainers.update.importance import (
    importance_of,
    of_older_weights,
    renewed,
    shares,
)
from coevo_gym.trainers.update.loss import LossTerms, grpo_loss
from coevo_gym.trainers.update.optimizer import decayed, guarded_adamw

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"PPO needs PyTorch. {extra_advice('train')}.") from error


class Valued(Learnable, Protocol):
    """A policy whose hidden states a value head can read.

    Attributes:
        value_lr: learning rate that suits such a head.
    """

    value_lr: float

    def value_head(self) -> torch.nn.Module:
        """A new head, which says 0 of everything; making it draws no random number."""
        ...

    def logprobs_and_values(
        self, samples: Sequence[Sample], head: torch.nn.Module
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As ``logprobs``, and the (B, T) values that a head reads where each was sampled."""
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
    """Half the mean squared error of values; where clipping makes it larger, of clipped ones.

    Args:
        values: (B, T) under the current weights.
        old: (B, T) the same before the update.
        targets: (B, T) what they should be.
        mask: (B, T) bool, True where there is a value.
        clip: values count as if they had moved by at most this.
        total: what the sum is divided by; default: the values of these samples.

    Returns:
        A scalar.
    """
    clipped = old + (values - old).clamp(-clip, clip)
    worse = torch.maximum((values - targets).square(), (clipped - targets).square())
    count = mask.sum().clamp(min=1) if total is None else total
    return 0.5 * worse.masked_fill(~mask, 0.0).sum() / count


def whitened(advantages: Tensor) -> Tensor:
    """Advantages (N,) with mean 0 and sample variance 1; as they are if there are fewer than two.

    Differences far below 1e-4 stay small: 1e-8 is added to the variance.
    """
    if len(advantages) < 2:
        return advantages
    return (advantages - advantages.mean()) * torch.rsqrt(advantages.var() + 1e-8)


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float:
    """Share of the variance of the targets that the values foretell.

    Returns:
        1 for perfect values, 0 for no better than a constant, less for worse; 0 where all targets
        are equal.
    """
    wanted = np.asarray(targets)
    spread = wanted.var() if len(wanted) else 0.0
    return float(1.0 - (wanted - np.asarray(values)).var() / spread) if spread > 0 else 0.0


class _Values(NamedTuple):
    """Rows of the value loss, one for each sample, and what an optimiser's step divides it by."""

    old: Sequence[Tensor]
    targets: Sequence[Tensor]
    valued: Sequence[Tensor]
    total: float


class _Old(NamedTuple):
    """What an update began with: a row of log-probabilities for each sample.

    Attributes:
        logprobs: of the policy that the ratio is to.
        reference: None if no term needs them.
        stale: (D,) bool, whether older weights sampled, so that a sample is weighted for them.
    """

    logprobs: Sequence[Tensor]
    reference: Sequence[Tensor] | None
    stale: Tensor


class PPO:
    """Learns from groups of trajectories, each on its own; one update is one policy version.

    Args:
        policy: what to train.
        config: settings.
        seed: seed of the order of minibatches.

    Attributes:
        spent: share of the run's budget that is spent, for a learning rate that decays.
        average: the average of the weights that is to be evaluated in their place, or None.

    Raises:
        ConfigError: if the policy's hidden states cannot be read.
    """

    def __init__(
        self, policy: Learnable, config: PPOConfig | None = None, *, seed: int = 0
    ) -> None:
        self.policy = _valued(policy)
        self.config = config or PPOConfig()
        self.updates = 0
        self.head = self.policy.value_head()
        self._optimizer = guarded_adamw(
            self.config,
            (list(policy.parameters()), self.config.lr),
            (list(self.head.parameters()), self.config.value_lr or self.policy.value_lr),
        )
        self._reference = policy.frozen_copy() if self.config.kl_coef else None
        self.spent, self.average = 0.0, averaged(policy, self.config.average)
        self._rng = np.random.default_rng(seed)
        self._known: dict[int, tuple[Trajectory, list[float]]] = {}  # of this policy version

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """GAE of each trajectory: one for each step, or at level ``token`` one for each token."""
        found = iter(self._estimates([t for group in groups for t in group.trajectories]))
        return [[next(found).advantage for _ in group.trajectories] for group in groups]

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Args:
            groups: what to learn from; those that are not whole, or staler than the settings
                allow, are left out and counted.
            advantages: of each trajectory of the groups that are not left out, or of all groups;
                default: :meth:`advantages`. Their mean over the batch becomes 0, their variance 1.

        Returns:
            Every term of the loss, averaged over the steps that the optimiser took, how well the
            values before the update foretold what came, and counts.

        Raises:
            ValueError: if a step's action is not what its decision sampled, or the policy gives
                log-probabilities of other positions than those that were sampled.
            ConfigError: if cues were stripped: old log-probabilities are the recorded ones.
            TrainingDiverged: if three steps in a row have no finite loss and gradient.
        """
        usable = [group for group in groups if group.comparable(self.config.max_staleness)]
        if advantages is None:
            advantages = self.advantages(usable)
        advantages = of_usable(groups, advantages, self.config.max_staleness)
        metrics = group_metrics(groups, usable, advantages, self.config.outcome)
        trajectories = [t for group in usable for t in group.trajectories]
        judged = zip(trajectories, chain.from_iterable(advantages), strict=True)
        kept = [(one, value) for one, value in judged if not one.end_reason.lost]
        metrics["masked_share"] = 1.0 - len(kept) / len(trajectories) if trajectories else 0.0
        batch = flatten([trajectory for trajectory, _ in kept], [value for _, value in kept])
        if not batch.samples:
            return metrics | {"decisions": 0.0}
        check_recorded(batch, "Choose learner.kind = 'pg' with old_logprobs = 'recomputed'.")
        estimates = self._estimates([trajectory for trajectory, _ in kept])
        metrics |= self._optimise(batch, estimates)
        self._known.clear()
        self.policy.version += 1
        self.updates += 1
        if self.average:
            self.average.update()
        return metrics

    def values(self, samples: Sequence[Sample]) -> Tensor:
        """(B, T) values of the sampled positions of each sample, without gradients."""
        with torch.no_grad():
            return self.policy.logprobs_and_values(samples, self.head)[2]

    def _estimates(self, trajectories: Sequence[Trajectory]) -> list[Estimate]:
        estimate = turn_estimate if self.config.level == "turn" else token_estimate
        outcome = Outcome(self.config.outcome)
        found = []
        for trajectory, values in zip(trajectories, self._expected(trajectories), strict=True):
            steps = trajectory.steps
            lengths = [0 if step.decision is None else n_sampled(step.decision) for step in steps]
            rewards = [0.0] * (len(steps) - 1) + [outcome(trajectory)] if steps else []
            settings = {"gamma": self.config.gamma, "lam": self.config.lam}
            found.append(estimate(rewards, lengths, values, **settings))
        return found

    def _expected(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Values of the sampled positions of each trajectory; none is computed twice a version."""
        new = [t for t in trajectories if id(t) not in self._known]
        batch = flatten(new, [0.0] * len(new))
        flat: list[float] = []
        rows = np.arange(len(batch.samples))
        for part in parts(rows, batch.tokens, self.config.microbatch_tokens) if len(rows) else ():
            values = self.values([batch.samples[i] for i in part])
            for row, n in zip(values.tolist(), batch.lengths[part].tolist(), strict=True):
                flat += row[:n]
        found = iter(flat)
        for trajectory in new:
            decisions = (step.decision for step in trajectory.steps)
            n = sum(n_sampled(decision) for decision in decisions if decision is not None)
            self._known[id(trajectory)] = trajectory, [next(found) for _ in range(n)]
        return [self._known[id(t)][1] for t in trajectories]

    def _optimise(self, batch: Batch, estimates: Sequence[Estimate]) -> dict[str, float]:
        config, size = self.config, len(batch.samples)
        minibatches, lengths = min(config.minibatches, size), batch.lengths.tolist()
        advantage = torch.split(whitened(torch.cat([*batch.advantage])), lengths)
        old, targets, valued = (
            list(chain.from_iterable(rows))
            for rows in zip(*(estimate[1:] for estimate in estimates), strict=True)
        )
        known = [place for place, there in enumerate(valued) if there]
        explained = explained_variance([old[i] for i in known], [targets[i] for i in known])
        values = _Values(
            torch.split(torch.tensor(old), lengths),
            torch.split(torch.tensor(targets), lengths),
            torch.split(torch.tensor(valued), lengths),
            len(known) / minibatches,
        )
        stale = of_older_weights(batch, self.policy.version, config.max_staleness)
        sampled = renewed(self.policy, batch, stale, config.microbatch_tokens)
        reference = None
        if self._reference is not None:
            reference = evaluated(self._reference, batch, config.microbatch_tokens)
        self._optimizer.decay = decayed(config, self.spent)
        before, sums = self._optimizer.steps, dict[str, float]()
        self.policy.train(True)
        try:
            for _ in range(config.epochs):
                for rows in np.array_split(self._rng.permutation(size), minibatches):
                    found = self._step(
                        batch._replace(advantage=advantage),
                        _Old(sampled, reference, stale),
                        values,
                        np.sort(rows),
                        float(sum(lengths)) / minibatches,
                    )
                    for name, value in found.items():
                        sums[name] = sums.get(name, 0.0) + value
        finally:
            self.policy.train(False)
        taken = self._optimizer.steps - before
        means = {name: value / taken for name, value in sums.items()}
        means["nonfinite_steps"] = float(config.epochs * minibatches - taken)
        means |= shares(batch, stale, config.max_staleness)
        return means | {"explained_variance": explained} | batch_metrics(batch)

    def _step(
        self,
        batch: Batch,
        old: _Old,
        values: _Values,
        rows: NDArray[np.int64],
        total: float,
    ) -> dict[str, float]:
        """One step of the optimiser on the samples at ``rows``; {} if it was skipped."""
        config = self.config
        self._optimizer.zero_grad()
        sums = dict.fromkeys((*LossTerms._fields, "value_loss"), 0.0)
        positions = float(batch.lengths[rows].sum())
        for part in parts(rows, batch.tokens, config.microbatch_tokens):
            samples = [batch.samples[i] for i in part]
            logp, mask, now = self.policy.logprobs_and_values(samples, self.head)
            check_positions(logp, mask, batch.lengths[part])
            old_logp, importance = padded(old.logprobs, part, logp), None
            if old.stale.any():
                cap = config.importance_cap
                importance, drift = importance_of(
                    batch, part, old_logp, mask, corrected=old.stale, cap=cap
                )
                for name, value in drift.items():
                    sums[name] = sums.get(name, 0.0) + value / positions
            terms = grpo_loss(
                logp,
                old_logp,
                logp.detach() if old.reference is None else padded(old.reference, part, logp),
                padded(batch.advantage, part, logp),
                mask,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                kl_coef=config.kl_coef,
                total=total,
                importance=importance,
            )
            error = value_loss(
                now,
                padded(values.old, part, now),
                padded(values.targets, part, now),
                padded(values.valued, part, mask),
                clip=config.value_clip,
                total=values.total,
            )
            loss = terms.loss + config.value_weight * error
            loss.backward()  # type: ignore[no-untyped-call]
            found = terms._asdict() | {"loss": loss, "value_loss": error}
            for name, term in found.items():
                sums[name] += term.item()
        # A share, whatever the loss divides by.
        sums["clip_fraction"] *= total / positions
        norm = self._optimizer.step(sums["loss"])
        return {} if norm is None else sums | {"grad_norm": norm, "lr": self._optimizer.lr}

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Optimiser, value head, reference, counters and generator; the policy keeps its own state.

        Args:
            reference: whether the reference is part of it; it never changes.
        """
        kept = self._reference.state_dict() if reference and self._reference is not None else None
        head = {name: w.detach().to("cpu", copy=True) for name, w in self.head.state_dict().items()}
        return self._optimizer.state_dict() | {
            "head": head,
            "reference": kept,
            "updates": self.updates,
            "average": self.average.state() if self.average else None,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; load the policy's own state first.

        A state without a reference leaves this learner's as it is.
        """
        self._optimizer.load_state_dict(state)
        self.head.load_state_dict(state["head"])
        if self._reference is not None and state["reference"] is not None:
            self._reference = None  # two would need the memory of two
            self._reference = self.policy.frozen_copy()
            self._reference.load_state_dict(state["reference"])
        self.updates = int(state["updates"])
        if self.average and state.get("average") is not None:
            self.average.load(state["average"])
        self._rng.bit_generator.state = state["rng"]
        self._known.clear()
        return self


def _valued(policy: Any) -> Valued:
    if not hasattr(policy, "logprobs_and_values"):
        raise ConfigError(
            f"{type(policy).__name__} has no hidden states that a value head can read; PPO trains "
            "policy.kind tiny and language models in this process. Choose learner.kind = 'pg'."
        )
    found: Valued = policy
    return found
