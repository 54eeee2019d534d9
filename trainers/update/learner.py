"""The update that GRPO and PPO share: from a batch and a loss to new weights.

A learner's own file says what it needs before the epochs, and what it minimises. Here are the
epochs, minibatches and microbatches, and the steps of the optimiser; and the state that these
change, with how it is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.seams import TrainablePolicy
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.settings import UpdateConfig
from coevo_gym.trainers.update.average import averaged
from coevo_gym.trainers.update.batch import Batch, evaluated, padded, parts
from coevo_gym.trainers.update.importance import importance_of, of_older_weights, shares
from coevo_gym.trainers.update.loss import LossTerms, grpo_loss
from coevo_gym.trainers.update.optimizer import decayed, guarded_adamw

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"Training needs PyTorch. {extra_advice('train')}.") from error


class Learnable(TrainablePolicy, Protocol):
    """A policy that a learner can train."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the weights to train."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch noise such as dropout on or off; off outside of an update."""
        ...

    def frozen_copy(self) -> Learnable:
        """Return a copy of the policy that is not trained any further."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all of its state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore :meth:`state_dict`."""
        ...


class Objective(NamedTuple):
    """The part of a loss that stays the same over all steps of an update.

    Attributes:
        old: old log-probabilities, a row for each of the D samples; None to use those of the
            current weights, where the update has one step only.
        reference: log-probabilities under the reference, a row for each sample; None without one.
        corrected: (D,) bool, True for a sample that is weighted because its sampler was not the
            old policy.
        idle: (D,) bool, True for a sample that has no gradient and is not read.
        weight: (D,) weight of each sample's positions.
        total: divisor of each step's sum: the batch's own, over the number of minibatches. So the
            mean of the steps' gradients is the gradient of the batch, however it is split.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    corrected: Tensor
    idle: Tensor
    weight: Tensor
    total: float


class Terms(NamedTuple):
    """The loss of a microbatch.

    Attributes:
        terms: scalars by name; ``loss`` is minimised, all are logged.
        drift: sums over the sampled positions, logged as means over a step's positions.
    """

    terms: dict[str, Tensor]
    drift: dict[str, float]


def surrogate(
    objective: Objective,
    batch: Batch,
    part: NDArray[np.int64],
    logp: Tensor,
    mask: Tensor,
    config: UpdateConfig,
) -> Terms:
    """Return the clipped surrogate of a microbatch, with its KL term.

    Args:
        objective: what the log-probabilities are compared with.
        batch: the samples.
        part: (B,) places of the microbatch's samples.
        logp: (B, T) log-probabilities under the current weights.
        mask: (B, T) bool, True where a position was sampled by the policy.
        config: the clips, the weight of the KL term and the cap of importance weights.
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
    """A policy under training, with its optimiser, its reference and its average.

    Args:
        policy: what to train.
        config: settings.
        heads: weights to train beside the policy's, and the learning rate of each part of them.
        seed: seed of the order of minibatches.

    Attributes:
        updates: updates so far.
        spent: share of the run's budget that is spent, for a learning rate that decays.
        average: the average of the weights that is to be evaluated in their place, or None.
    """

    def __init__(
        self,
        policy: Learnable,
        config: UpdateConfig,
        *heads: tuple[Sequence[torch.nn.Parameter], float],
        seed: int,
    ) -> None:
        self.policy, self.config = policy, config
        self.updates, self.spent = 0, 0.0
        self._optimizer = guarded_adamw(config, (list(policy.parameters()), config.lr), *heads)
        self._reference = policy.frozen_copy() if config.kl_coef else None
        self.average = averaged(policy, config.average)
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def _minibatches(self, batch: Batch) -> int:
        return min(self.config.minibatches, len(batch.samples))

    def _reference_rows(self, batch: Batch) -> list[Tensor] | None:
        """Return log-probabilities under the reference, a row for each sample; None without one."""
        if self._reference is None:
            return None
        return evaluated(self._reference, batch, self.config.microbatch_tokens)

    def _take_steps(
        self, batch: Batch, objective: Objective, loss: Callable[[NDArray[np.int64]], Terms]
    ) -> dict[str, float]:
        """Change the weights: ``epochs`` passes over the batch, one step for each minibatch.

        Args:
            batch: the D samples.
            objective: says which samples are read, and what a step's loss is divided by.
            loss: computes the loss of a microbatch from the places of its samples.

        Returns:
            Every term of the loss, averaged over the steps that the optimiser took.

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
        taken = self._optimizer.steps - before
        means = {name: value / taken for name, value in sums.items()}
        means["nonfinite_steps"] = float(config.epochs * minibatches - taken)
        self.policy.version += 1
        self.updates += 1
        if self.average:
            self.average.update()
        return means | shares(batch, stale)

    def _step(
        self,
        batch: Batch,
        objective: Objective,
        rows: NDArray[np.int64],
        loss: Callable[[NDArray[np.int64]], Terms],
    ) -> dict[str, float]:
        """Take one step of the optimiser on the samples at ``rows``; {} if it was skipped."""
        self._optimizer.zero_grad()
        read = rows[~objective.idle[rows].numpy()]
        positions = float(batch.lengths[read].sum())
        sums = dict.fromkeys(LossTerms._fields, 0.0)
        if not len(read):  # a step all the same: the optimiser's averages go on
            for weight in self.policy.parameters():
                weight.grad = torch.zeros_like(weight)
        for part in parts(read, batch.tokens, self.config.microbatch_tokens) if len(read) else ():
            terms, drift = loss(part)
            terms["loss"].backward()  # type: ignore[no-untyped-call]
            for name, term in terms.items():
                sums[name] = sums.get(name, 0.0) + term.item()
            for name, value in drift.items():
                sums[name] = sums.get(name, 0.0) + value / positions
        # A share, whatever the loss divides by.
        weighed = float((objective.weight[rows] * batch.lengths[rows]).sum())
        sums["clip_fraction"] *= objective.total / weighed
        norm = self._optimizer.step(sums["loss"])
        return {} if norm is None else sums | {"grad_norm": norm, "lr": self._optimizer.lr}

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return optimiser, reference, counters and generator; the policy keeps its own state.

        Args:
            reference: whether to include the reference. It never changes, and is as large as the
                policy: who saves often saves it once, as the policy that the learner was made
                with.
        """
        kept = self._reference.state_dict() if reference and self._reference is not None else None
        return self._optimizer.state_dict() | {
            "reference": kept,
            "updates": self.updates,
            "average": self.average.state() if self.average else None,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; load the policy's own state first.

        A state without a reference leaves this learner's as it is: make the learner with the policy
        that the first one was made with, and load the policy's later state after that.
        """
        self._optimizer.load_state_dict(state)
        if self._reference is not None and state["reference"] is not None:
            self._reference = None  # two would need the memory of two
            self._reference = self.policy.frozen_copy()
            self._reference.load_state_dict(state["reference"])
        self.updates = int(state["updates"])
        if self.average and state.get("average") is not None:
            self.average.load(state["average"])
        self._rng.bit_generator.state = state["rng"]
        return self
