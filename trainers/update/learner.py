"""The weight update that GRPO and PPO share.

A learner's own module prepares the batch and defines the loss. This module contains the loop over
epochs, minibatches and microbatches, the optimiser steps, and the state that they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.own_code import load_own_object
from coevo_gym.core.seams import PolicyOutputs, TrainablePolicy
from coevo_gym.core.trajectory import Sample, Segment
from coevo_gym.trainers.settings import UpdateConfig
from coevo_gym.trainers.update.batch import (
    Batch,
    detached_logprobs,
    pad_rows,
    split_minibatches,
)
from coevo_gym.trainers.update.importance import importance_weights, sampler_divergence, stale_mask
from coevo_gym.trainers.update.loss import Loss, LossInputs, LossTerms, clipped_surrogate
from coevo_gym.trainers.update.optimizer import AveragedWeights, guarded_adamw, lr_decay_factor
from coevo_gym.trainers.update.ranks import current_ranks


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


class Entropic(LearnablePolicy, Protocol):
    """A policy that computes the entropy of its whole distribution, for the entropy bonus."""

    def logprobs_and_entropy(
        self, samples: Sequence[Sample], head: torch.nn.Module | None = None
    ) -> PolicyOutputs:
        """Return what ``logprobs`` returns, entropies, and values if there is a value head."""
        ...


@runtime_checkable
class MeasuredSampler(Protocol):
    """A policy that measures how it samples."""

    def take_sampling_metrics(self) -> dict[str, float]:
        """Return metrics of all sampling since the last call."""
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
        total: divisor of each step's sum: the batch's divisor over the number of steps per pass,
            where a smaller last step counts as a fraction. The sum of the steps' gradients over
            that number then equals the batch's gradient for any split.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    corrected: Tensor
    idle: Tensor
    weight: Tensor
    total: float


class Terms(NamedTuple):
    """The loss terms of a microbatch, and further statistics to log."""

    terms: dict[str, Tensor]  # scalars by name; ``loss`` is minimised, all are logged
    drift: dict[str, float]  # sums over sampled positions, logged as means over a step's positions


def microbatch_loss(
    objective: Objective,
    batch: Batch,
    part: NDArray[np.int64],
    outputs: PolicyOutputs,
    config: UpdateConfig,
    loss: Callable[[LossInputs], Mapping[str, Tensor]],
) -> Terms:
    """Compute the loss of a microbatch, by default the clipped surrogate with its KL term.

    Args:
        objective: constant part of the loss.
        batch: samples.
        part: (B,) indices of the microbatch's samples.
        outputs: the policy's outputs for these samples under the current weights.
        config: settings for clipping and importance weights.
        loss: computes the terms.
    """
    logp, mask, entropy = outputs.logp, outputs.mask, outputs.entropy
    reference, corrected = objective.reference, objective.corrected
    old_logp = logp.detach() if objective.old is None else pad_rows(objective.old, part, logp)
    importance, drift = None, dict[str, float]()
    if corrected.any():
        cap = config.importance_cap
        importance, drift = importance_weights(
            batch, part, old_logp, mask, corrected=corrected, cap=cap
        )
    elif isinstance(batch.samples[0], Segment):
        drift["sampler_kl"] = sampler_divergence(batch, part, logp.detach(), mask)
    ref_logp = logp.detach() if reference is None else pad_rows(reference, part, logp)
    terms = loss(
        LossInputs(
            logp=logp.masked_fill(~mask, 0.0),
            old_logp=old_logp.masked_fill(~mask, 0.0),
            ref_logp=ref_logp.masked_fill(~mask, 0.0),
            advantage=pad_rows(batch.advantage, part, logp),
            mask=mask,
            clip_high=config.clip_high if batch.clip_high is None else batch.clip_high[part],
            weight=objective.weight[part].to(logp),
            total=objective.total,
            importance=torch.ones_like(logp) if importance is None else importance,
            entropy=None if entropy is None else entropy.masked_fill(~mask, 0.0),
        )
    )
    return Terms(dict(terms), drift)


def check_terms(terms: Mapping[str, object]) -> None:
    """Check that a loss returned scalar tensors by name, one of them named ``loss``.

    Raises:
        ConfigError: if it did not.
    """
    wrong = [name for name, t in terms.items() if not isinstance(t, Tensor) or t.numel() != 1]
    if "loss" not in terms or wrong:
        raise ConfigError(
            f"The loss returned {sorted(terms)}"
            + (f", where {', '.join(wrong)} is not a scalar tensor" if wrong else "")
            + ". Return scalar tensors by name, with the term to minimise as 'loss'."
        )


def load_loss(path: str) -> Loss:
    """Import and return the loss function that ``learner.loss`` names.

    Raises:
        ConfigError: if there is no such function.
    """
    loss: Loss = load_own_object(path)
    if not callable(loss):
        raise ConfigError(
            f"{path!r} is {loss!r}, which is not a function. Set learner.loss to a function that "
            "takes LossInputs and the learner's settings."
        )
    return loss


class SurrogateLearner:
    """A policy being trained, with its optimiser, reference model and averaged weights.

    ``heads`` are further weights to train, each with its learning rate. The seed determines the
    order of minibatches. A subclass may override :meth:`loss`. An entropy bonus needs an
    :class:`Entropic` policy.

    Attributes:
        settings: class of the learner's settings.
        updates: number of updates so far.
        spent: spent share of the run's budget, for learning rate decay.
        average: averaged weights to evaluate instead of the trained weights, or None.
    """

    settings: ClassVar[type[UpdateConfig]] = UpdateConfig

    def __init__(
        self,
        policy: LearnablePolicy,
        config: UpdateConfig,
        *heads: tuple[Sequence[torch.nn.Parameter], float],
        seed: int,
    ) -> None:
        self.policy, self.config = policy, config
        self._loss = load_loss(config.loss) if config.loss else clipped_surrogate
        self.updates, self.spent = 0, 0.0
        if config.entropy_coef and not hasattr(policy, "logprobs_and_entropy"):
            raise ConfigError(
                f"{type(policy).__name__} has no method logprobs_and_entropy, which the entropy "
                "bonus needs. Add it, or set learner.entropy_coef = 0."
            )
        self._optimizer = guarded_adamw(config, (list(policy.parameters()), config.lr), *heads)
        self._reference = policy.frozen_copy() if config.kl_coef else None
        self.average = AveragedWeights(policy, config.average) if config.average else None
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy being trained."""
        return self.policy.version

    @property
    def has_reference(self) -> bool:
        """True if the learner compares its policy with a frozen reference model."""
        return self._reference is not None

    @property
    def has_own_loss(self) -> bool:
        """True if the settings or a subclass replace the loss."""
        return bool(self.config.loss) or type(self).loss is not SurrogateLearner.loss

    def loss(self, inputs: LossInputs) -> Mapping[str, Tensor]:
        """Return the terms of a microbatch's loss by name. The term ``loss`` is minimised."""
        return self._loss(inputs, self.config)

    def _reference_logprobs(self, batch: Batch) -> list[Tensor] | None:
        """Return each sample's reference log-probabilities, or None without a reference model."""
        if self._reference is None:
            return None
        return detached_logprobs(self._reference, batch, self.config.microbatch_tokens)

    def _run_epochs(
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
        config, size, attempted = self.config, len(batch.samples), 0
        stale = stale_mask(batch, self.version)
        self._optimizer.decay = lr_decay_factor(config, self.spent)
        before, sums = self._optimizer.steps, dict[str, float]()
        divergences = list[float]()
        self.policy.train(True)
        try:
            for _ in range(config.epochs):
                for rows in split_minibatches(self._rng.permutation(size), config):
                    attempted += 1
                    step = self._take_step(batch, objective, np.sort(rows), loss)
                    if "sampler_kl" in step:
                        divergences.append(step.pop("sampler_kl"))
                    for name, value in step.items():
                        sums[name] = sums.get(name, 0.0) + value
        finally:
            self.policy.train(False)
        n_steps = self._optimizer.steps - before
        means = {name: value / n_steps for name, value in sums.items()}
        means["nonfinite_steps"] = float(attempted - n_steps)
        if divergences:  # without recomputed log-probabilities, the weights differ after a step
            recomputed = bool(objective.corrected.any())
            means["sampler_kl"] = sum(divergences) / n_steps if recomputed else divergences[0]
        if isinstance(self.policy, MeasuredSampler):
            means |= self.policy.take_sampling_metrics()
        self.policy.version += 1
        self.updates += 1
        if self.average:
            self.average.update()
        if batch.off_policy:
            means["stale_share"] = float(batch.lengths[stale].sum() / batch.lengths.sum())
        return means

    def _take_step(
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
        sums = dict[str, float]()
        if not len(read):  # still take a step, so that the optimiser's averages are updated
            sums = dict.fromkeys(LossTerms._fields, 0.0)
            for parameter in self.policy.parameters():
                parameter.grad = torch.zeros_like(parameter)
        ranks = current_ranks()
        for part, weight in ranks.share_rows(read, batch.tokens, self.config.microbatch_tokens):
            terms, drift = loss(part)
            check_terms(terms)
            (weight * terms["loss"]).backward()  # type: ignore[no-untyped-call]
            for name, term in terms.items():
                sums[name] = sums.get(name, 0.0) + weight * term.item()
            for name, value in drift.items():
                sums[name] = sums.get(name, 0.0) + weight * value / positions
        sums = ranks.sum(sums)
        # Turn the fraction into a share of positions, independent of the loss divisor.
        weighed = float((objective.weight[rows] * batch.lengths[rows]).sum())
        if "clip_fraction" in sums:
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
