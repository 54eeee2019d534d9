"""The weight update that GRPO and PPO share.

A learner's own module prepares the batch and defines the loss. This module contains the loop over
epochs, minibatches and microbatches, the optimiser steps, and the state that they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coevo_gym.core.seams import TrainablePolicy
from coevo_gym.trainers.settings import UpdateConfig
from coevo_gym.trainers.update.batch import Batch, evaluated, padded, parts
from coevo_gym.trainers.update.importance import importance_of, of_older_weights
from coevo_gym.trainers.update.loss import LossTerms, grpo_loss
from coevo_gym.trainers.update.optimizer import AveragedWeights, decayed, guarded_adamw


class LearnablePolicy(TrainablePolicy, Protocol):
    """A policy that a learner can train."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the trainable weights."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch noise such as dropout on or off. Only updates use noise."""
        ...

    def frozen_copy(self) -> LearnablePolicy:
        """Return a frozen copy of the policy."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's complete state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore the state from :meth:`state_dict`."""
        ...


class Objective(NamedTuple):
    """Loss inputs that stay constant during an update.

    Attributes:
        old: old log-probabilities, one row for each of the D samples; None to use the current
            weights, if the update has only one step.
        reference: log-probabilities under the reference, one row per sample; None if unused.
        corrected: (D,) bool, True for samples to weight because the old policy did not sample them.
        idle: (D,) bool, True for samples without a gradient, which are skipped.
        weight: (D,) weight of each sample's positions.
        total: divisor of each step's sum: the batch's divisor over the number of minibatches. The
            mean of the steps' gradients then equals the batch's gradient for any split.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    corrected: Tensor
    idle: Tensor
    weight: Tensor
    total: float


class Terms(NamedTuple):
    """The loss of a microbatch."""

    terms: dict[str, Tensor]  # scalars by name; ``loss`` is minimised, all are logged
    drift: dict[str, float]  # sums over sampled positions, logged as means over a step's positions


def surrogate(
    objective: Objective,
    batch: Batch,
    part: NDArray[np.int64],
    logp: Tensor,
    mask: Tensor,
    config: UpdateConfig,
) -> Terms:
    """Compute the clipped surrogate objective of a microbatch, with its KL term.

    Args:
        objective: constant part of the loss.
        batch: samples.
        part: (B,) indices of the microbatch's samples.
        logp: (B, T) log-probabilities under the current weights.
        mask: (B, T) bool, True for positions sampled by the policy.
        config: settings for clipping, the KL term and importance weights.
    """
    reference, corrected = objective.reference, objective.corrected
    old_logp = logp.detach() if objective.old is None else padded(objective.old, part, logp)
    importance, drift = None, dict[str, float]()
    if corrected.any():
        cap = config.importance_cap
        importance, drift = importance_of(batch, part, old_logp, mask, corrected=corrected, cap=cap)
    terms = grpo_loss(
        logp,
        old_logp,
        logp.detach() if reference is None else padded(reference, part, logp),
        padded(batch.advantage, part, logp),
        mask,
        clip_low=config.clip_low,
        clip_high=config.clip_high if batch.clip_high is None else batch.clip_high[part],
        kl_coef=config.kl_coef,
        weight=objective.weight[part].to(logp),
        total=objective.total,
        importance=importance,
    )
    return Terms(terms._asdict(), drift)


class SurrogateLearner:
    """A policy being trained, with its optimiser, reference model and averaged weights.

    ``heads`` are further weights to train, each with its learning rate. The seed determines the
    order of minibatches.

    Attributes:
        updates: number of updates so far.
        spent: spent share of the run's budget, for learning rate decay.
        average: averaged weights to evaluate instead of the trained weights, or None.
    """

    def __init__(
        self,
        policy: LearnablePolicy,
        config: UpdateConfig,
        *heads: tuple[Sequence[torch.nn.Parameter], float],
        seed: int,
    ) -> None:
        self.policy, self.config = policy, config
        self.updates, self.spent = 0, 0.0
        self._optimizer = guarded_adamw(config, (list(policy.parameters()), config.lr), *heads)
        self._reference = policy.frozen_copy() if config.kl_coef else None
        self.average = AveragedWeights(policy, config.average) if config.average else None
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy being trained."""
        return self.policy.version

    def _minibatches(self, batch: Batch) -> int:
        return min(self.config.minibatches, len(batch.samples))

    def _reference_rows(self, batch: Batch) -> list[Tensor] | None:
        """Return each sample's reference log-probabilities, or None without a reference model."""
        if self._reference is None:
            return None
        return evaluated(self._reference, batch, self.config.microbatch_tokens)

    def _take_steps(
        self, batch: Batch, objective: Objective, loss: Callable[[NDArray[np.int64]], Terms]
    ) -> dict[str, float]:
        """Update the weights in ``epochs`` passes over the batch, with one step per minibatch.

        Idle samples are skipped. ``loss`` computes a microbatch's loss from the indices of its
        samples.

        Returns:
            Every loss term, averaged over the steps that the optimiser took.

        Raises:
            TrainingDiverged: if three steps in a row have no finite loss and gradient.
        """
        config, size, minibatches = self.config, len(batch.samples), self._minibatches(batch)
        stale = of_older_weights(batch, self.version)
        self._optimizer.decay = decayed(config, self.spent)
        before, sums = self._optimizer.steps, dict[str, float]()
        self.policy.train(True)
        try:
            for _ in range(config.epochs):
                for rows in np.array_split(self._rng.permutation(size), minibatches):
                    step = self._step(batch, objective, np.sort(rows), loss)
                    for name, value in step.items():
                        sums[name] = sums.get(name, 0.0) + value
        finally:
            self.policy.train(False)
        n_steps = self._optimizer.steps - before
        means = {name: value / n_steps for name, value in sums.items()}
        means["nonfinite_steps"] = float(config.epochs * minibatches - n_steps)
        self.policy.version += 1
        self.updates += 1
        if self.average:
            self.average.update()
        if batch.off_policy:
            means["stale_share"] = float(batch.lengths[stale].sum() / batch.lengths.sum())
        return means

    def _step(
        self,
        batch: Batch,
        objective: Objective,
        rows: NDArray[np.int64],
        loss: Callable[[NDArray[np.int64]], Terms],
    ) -> dict[str, float]:
        """Take one optimiser step on the samples at ``rows``; return {} if it was skipped."""
        self._optimizer.zero_grad()
        read = rows[~objective.idle[rows].numpy()]
        positions = float(batch.lengths[read].sum())
        sums = dict.fromkeys(LossTerms._fields, 0.0)
        if not len(read):  # still take a step, so that the optimiser's averages are updated
            for weight in self.policy.parameters():
                weight.grad = torch.zeros_like(weight)
        for part in parts(read, batch.tokens, self.config.microbatch_tokens) if len(read) else ():
            terms, drift = loss(part)
            terms["loss"].backward()  # type: ignore[no-untyped-call]
            for name, term in terms.items():
                sums[name] = sums.get(name, 0.0) + term.item()
            for name, value in drift.items():
                sums[name] = sums.get(name, 0.0) + value / positions
        # Turn the fraction into a share of positions, independent of the loss divisor.
        weighed = float((objective.weight[rows] * batch.lengths[rows]).sum())
        sums["clip_fraction"] *= objective.total / weighed
        norm = self._optimizer.step(sums["loss"])
        return {} if norm is None else sums | {"grad_norm": norm, "lr": self._optimizer.lr}

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return the learner's state, including the reference model but excluding the policy.

        The reference never changes and is as large as the policy. To save often, save the policy
        that the learner was created with once, and leave out the reference here.
        """
        state = self._reference.state_dict() if reference and self._reference is not None else None
        return self._optimizer.state_dict() | {
            "reference": state,
            "updates": self.updates,
            "average": self.average.state() if self.average else None,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`. Load the policy's own state first.

        A state without a reference leaves the learner's reference unchanged. In that case, create
        the learner with the initial policy, and load the policy's later state afterwards.
        """
        self._optimizer.load_state_dict(state)
        if self._reference is not None and state["reference"] is not None:
            self._reference = None  # free the memory before creating a new one
            self._reference = self.policy.frozen_copy()
            self._reference.load_state_dict(state["reference"])
        self.updates = int(state["updates"])
        if self.average and state["average"] is not None:
            self.average.load(state["average"])
        self._rng.bit_generator.state = state["rng"]
        return self
