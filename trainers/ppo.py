"""PPO: a value head says what to expect, and what comes otherwise is learned from.

It needs no group to compare with: a trajectory is judged step by step against what the policy's
own hidden states foretold. The head belongs to the learner, so the policy is the same with it and
without. An update takes what GRPO's takes, with the value loss beside the clipped surrogate.

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
from coevo_gym.trainers.segments import n_sampled
from coevo_gym.trainers.settings import PPOConfig
from coevo_gym.trainers.update.batch import (
    Batch,
    batch_metrics,
    batch_of,
    check_positions,
    check_recorded,
    flatten,
    padded,
    parts,
)
from coevo_gym.trainers.update.importance import of_older_weights, renewed
from coevo_gym.trainers.update.learner import (
    Learnable,
    Objective,
    SurrogateLearner,
    Terms,
    surrogate,
)

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
    """Rows of the value loss, one for each sample, and the divisor of each step's sum."""

    old: Sequence[Tensor]
    targets: Sequence[Tensor]
    valued: Sequence[Tensor]
    total: float


class PPO(SurrogateLearner):
    """Learns from groups of trajectories, each on its own; one update is one policy version.

    Args:
        policy: what to train.
        config: settings.
        seed: seed of the order of minibatches.

    Attributes:
        head: reads values from the policy's hidden states.

    Raises:
        ConfigError: if the policy's hidden states cannot be read.
    """

    policy: Valued
    config: PPOConfig

    def __init__(
        self, policy: Learnable, config: PPOConfig | None = None, *, seed: int = 0
    ) -> None:
        config, valued = config or PPOConfig(), _valued(policy)
        self.head = valued.value_head()
        value_lr = config.value_lr or valued.value_lr
        super().__init__(valued, config, (list(self.head.parameters()), value_lr), seed=seed)
        self._known: dict[int, tuple[Trajectory, list[float]]] = {}  # of this policy version

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """GAE of each trajectory: one for each step, or at level ``token`` one for each token."""
        found = iter(self._estimates([t for group in groups for t in group.trajectories]))
        return [[next(found).advantage for _ in group.trajectories] for group in groups]

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Args:
            groups: what to learn from; those that are not whole, or staler than they may
                be, are left out and counted.
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
        config = self.config
        batch, metrics = batch_of(groups, advantages, config, judge=self.advantages)
        if not batch.samples:
            return metrics | {"decisions": 0.0}
        check_recorded(batch, "Choose learner.kind = 'pg' with old_logprobs = 'recomputed'.")
        values, explained = self._value_rows(batch)
        objective = self._objective(batch)
        lengths = batch.lengths.tolist()
        advantage = torch.split(whitened(torch.cat([*batch.advantage])), lengths)
        learned = batch._replace(advantage=advantage)

        def loss(part: NDArray[np.int64]) -> Terms:
            samples = [batch.samples[i] for i in part]
            logp, mask, now = self.policy.logprobs_and_values(samples, self.head)
            check_positions(logp, mask, batch.lengths[part])
            terms, drift = surrogate(objective, learned, part, logp, mask, config)
            error = value_loss(
                now,
                padded(values.old, part, now),
                padded(values.targets, part, now),
                padded(values.valued, part, mask),
                clip=config.value_clip,
                total=values.total,
            )
            total = terms["loss"] + config.value_weight * error
            return Terms(terms | {"loss": total, "value_loss": error}, drift)

        metrics |= self._take_steps(learned, objective, loss)
        self._known.clear()
        return metrics | {"explained_variance": explained} | batch_metrics(batch)

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

    def _value_rows(self, batch: Batch) -> tuple[_Values, float]:
        """Return the rows of the value loss, and how well the values foretold what came."""
        old, targets, valued = (
            list(chain.from_iterable(rows))
            for rows in zip(*(e[1:] for e in self._estimates(batch.trajectories)), strict=True)
        )
        known = [place for place, there in enumerate(valued) if there]
        explained = explained_variance([old[i] for i in known], [targets[i] for i in known])
        lengths = batch.lengths.tolist()
        rows = _Values(
            torch.split(torch.tensor(old), lengths),
            torch.split(torch.tensor(targets), lengths),
            torch.split(torch.tensor(valued), lengths),
            len(known) / self._minibatches(batch),
        )
        return rows, explained

    def _objective(self, batch: Batch) -> Objective:
        """Return what all steps share: the mean over positions, and no sample is left out."""
        config, n_samples = self.config, len(batch.samples)
        stale = of_older_weights(batch, self.version)
        return Objective(
            old=renewed(self.policy, batch, stale, config.microbatch_tokens),
            reference=self._reference_rows(batch),
            corrected=stale,
            idle=torch.zeros(n_samples, dtype=torch.bool),
            weight=torch.ones(n_samples),
            total=float(batch.lengths.sum()) / self._minibatches(batch),
        )

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return the state of any such learner, and the value head."""
        head = {name: w.detach().to("cpu", copy=True) for name, w in self.head.state_dict().items()}
        return super().state_dict(reference=reference) | {"head": head}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; load the policy's own state first."""
        self.head.load_state_dict(state["head"])
        self._known.clear()
        return super().load_state_dict(state)


def _valued(policy: Any) -> Valued:
    if not hasattr(policy, "logprobs_and_values"):
        raise ConfigError(
            f"{type(policy).__name__} has no hidden states that a value head can read; PPO trains "
            "policy.kind tiny and language models in this process. Choose learner.kind = 'pg'."
        )
    found: Valued = policy
    return found
