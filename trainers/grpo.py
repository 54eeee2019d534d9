"""GRPO and its relatives: clip-higher, several means of the loss, a KL term, and what DAPO adds.

The learner. How rollouts are judged is in ``advantages.py``, how decisions become samples in
``segments.py``, these a batch in ``batch.py``; what is minimised is in ``loss.py``, how the weights
change in ``optimizer.py``, the settings in ``settings.py``.

Sources: GRPO (arXiv 2402.03300); token mean as in CoEvolve (arXiv 2604.15840, Eq. 1), the mean over
trajectories as in Role-Agent (arXiv 2606.10917, Eq. 1), the constant one as in Dr. GRPO (arXiv
2503.20783).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.seams import TrainablePolicy
from coevo_gym.core.trajectory import EndReason, Group, Segment, Trajectory
from coevo_gym.curricula.session.groups import LOST
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.advantages import group_advantages, judge
from coevo_gym.trainers.batch import (
    Batch,
    batch_metrics,
    flatten,
    group_metrics,
    padded,
    parts,
    trajectory_weights,
)
from coevo_gym.trainers.loss import LossTerms, bounded_exp, grpo_loss, k3
from coevo_gym.trainers.optimizer import GuardedOptimizer
from coevo_gym.trainers.parts import Advantage
from coevo_gym.trainers.settings import CLIPS_NEVER_ACT, GRPOConfig

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"GRPO needs PyTorch. {extra_advice('train')}.") from error

__all__ = [
    "GRPO",
    "GRPOConfig",
    "Learnable",
    "LossTerms",
    "group_advantages",
    "grpo_loss",
    "k3",
    "trajectory_weights",
]

_LOG = logging.getLogger(__name__)

OVERLONG = frozenset({EndReason.MAX_TOKENS, EndReason.CONTEXT_OVERFLOW})
"""Ends for want of tokens."""


class Learnable(TrainablePolicy, Protocol):
    """A policy that this learner can train."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The weights to train."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Switch noise such as dropout on or off; off outside of an update."""
        ...

    def frozen_copy(self) -> Learnable:
        """The policy as it is now; nothing trains it any further."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of its state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore :meth:`state_dict`."""
        ...


class _Objective(NamedTuple):
    """What stays the same over an update's steps.

    Attributes:
        old: a row for each sample; None where those of the only step are the old ones.
        reference: a row for each sample; None if no term needs them.
        weight: (D,) of the samples' positions.
        total: what each step divides by: the batch's number, over the minibatches. So the mean of
            their gradients is the gradient of the batch, however it is split.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    weight: Tensor
    total: float


_FUSED_FROM = 1_000_000
"""Weights from which on AdamW's fused kernel, which takes a quarter of the time on a CPU, is worth
its other rounding. Runs of smaller policies stay equal to the last bit."""


class GRPO:
    """Learns from whole groups; one update is one policy version.

    Args:
        policy: what to train. Choices must be sampled at temperature 1; a segment says its own.
        config: settings.
        seed: seed of the order of minibatches.
    """

    def __init__(
        self, policy: Learnable, config: GRPOConfig | None = None, *, seed: int = 0
    ) -> None:
        self.policy = policy
        self.config = config or GRPOConfig()
        self.updates = 0
        weights = list(policy.parameters())
        adamw = torch.optim.AdamW(
            weights,
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
            fused=sum(weight.numel() for weight in weights) >= _FUSED_FROM,
        )
        self._optimizer = GuardedOptimizer(
            adamw,
            max_grad_norm=self.config.max_grad_norm,
            warmup_steps=self.config.lr_warmup_steps,
        )
        if self.config.clips_never_act:
            _LOG.warning("%s", CLIPS_NEVER_ACT)
        self._reference = policy.frozen_copy() if self.config.kl_coef else None
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def advantages(self, groups: Sequence[Group]) -> list[list[Advantage]]:
        """One advantage for each trajectory of each group, or with GiGPO one for each step."""
        return [judge(group, self.config) for group in groups]

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Args:
            groups: what to learn from; those that are not whole are left out and counted.
            advantages: one for each trajectory of each group, or one for each of its steps;
                default: :meth:`advantages`. Of whole groups only, or of all.

        Returns:
            Every term of the loss, averaged over the steps that the optimiser took, and counts.
            If it took none, because none was finite, there are counts only.

        Raises:
            ValueError: if a step's action is not what its decision sampled, or the policy gives
                log-probabilities of other positions than those that were sampled.
            TrainingDiverged: if three steps in a row, of this update and those before, have no
                finite loss and gradient.
        """
        whole = [group for group in groups if group.whole]
        if advantages is None:
            advantages = self.advantages(whole)
        elif len(advantages) == len(groups):
            advantages = [a for g, a in zip(groups, advantages, strict=True) if g.whole]
        metrics = group_metrics(groups, whole, advantages, self.config.outcome)
        judged = [
            pair
            for group, values in zip(whole, advantages, strict=True)
            for pair in zip(group.trajectories, values, strict=True)
        ]
        kept = [pair for pair in judged if not self._masked(pair[0])]
        metrics["masked_share"] = 1.0 - len(kept) / len(judged) if judged else 0.0
        batch = flatten([trajectory for trajectory, _ in kept], [value for _, value in kept])
        if not batch.samples:
            return metrics | {"decisions": 0.0}
        metrics |= self._optimise(batch)
        self.policy.version += 1
        self.updates += 1
        return metrics

    def _masked(self, trajectory: Trajectory) -> bool:
        """Whether the loss leaves a trajectory out."""
        overlong = self.config.overlong == "mask" and trajectory.end_reason in OVERLONG
        return overlong or trajectory.end_reason in LOST

    def _evaluated(self, policy: Learnable, batch: Batch) -> list[Tensor]:
        """Log-probabilities without gradients, a row for each sample."""
        rows: list[Tensor] = []
        size, most = len(batch.samples), self.config.microbatch_tokens
        with torch.no_grad():
            for part in parts(np.arange(size), batch.tokens, most):
                logp, mask = _logprobs(policy, batch, part)
                rows += torch.split(logp[mask], batch.lengths[part].tolist())
        return rows

    def _importance(
        self, old_logp: Tensor, recorded: Tensor, mask: Tensor
    ) -> tuple[Tensor | None, dict[str, float]]:
        """(B, T) weights for a sampler that is not the old policy, and how far it is from it."""
        ratio = bounded_exp((old_logp - recorded).masked_fill(~mask, 0.0))
        cap = self.config.importance_cap
        weight = ratio if cap is None else ratio.clamp(max=cap)
        sums = {
            "importance": float(weight[mask].sum()),
            "importance_capped_share": float((weight < ratio)[mask].sum()),
            "sampler_kl": float(k3(recorded, old_logp)[mask].sum()),
        }
        return (None if cap is None else weight), sums

    def _optimise(self, batch: Batch) -> dict[str, float]:
        size = len(batch.samples)
        minibatches = min(self.config.minibatches, size)
        objective, times = self._objective(batch, minibatches)
        started, before = perf_counter(), self._optimizer.steps
        sums: dict[str, float] = {}
        self.policy.train(True)
        try:
            for _ in range(self.config.epochs):
                order = self._rng.permutation(size)
                for rows in np.array_split(order, minibatches):
                    for name, value in self._step(batch, objective, np.sort(rows)).items():
                        sums[name] = sums.get(name, 0.0) + value
        finally:
            self.policy.train(False)
        taken = self._optimizer.steps - before
        means = {name: value / taken for name, value in sums.items()}
        means["nonfinite_steps"] = float(self.config.epochs * minibatches - taken)
        if any(isinstance(sample, Segment) for sample in batch.samples):
            means |= times | {"step_s": perf_counter() - started}
        return means | batch_metrics(batch)

    def _objective(self, batch: Batch, minibatches: int) -> tuple[_Objective, dict[str, float]]:
        """What all steps share, and the wall times of finding it."""
        config, started = self.config, perf_counter()
        old: Sequence[Tensor] | None = batch.recorded
        if config.old_logprobs == "recomputed":
            only_step = config.epochs * minibatches == 1
            old = None if only_step else self._evaluated(self.policy, batch)
        old_done, reference = perf_counter(), None
        if self._reference is not None:
            reference = self._evaluated(self._reference, batch)
        times = {"old_s": old_done - started, "reference_s": perf_counter() - old_done}
        weight, total = torch.ones(len(batch.samples)), float(batch.lengths.sum())
        if config.loss_mean == "trajectory":
            weight = trajectory_weights(batch.owner, batch.lengths)
        elif config.loss_mean == "constant":
            total = float(config.constant_tokens * (int(batch.owner.max()) + 1))
        return _Objective(old, reference, weight, total / minibatches), times

    def _step(
        self, batch: Batch, objective: _Objective, rows: NDArray[np.int64]
    ) -> dict[str, float]:
        """One step of the optimiser on the samples at ``rows``; {} if it was skipped."""
        self._optimizer.zero_grad()
        positions = float(batch.lengths[rows].sum())
        sums = dict.fromkeys(LossTerms._fields, 0.0)
        for part in parts(rows, batch.tokens, self.config.microbatch_tokens):
            logp, mask = _logprobs(self.policy, batch, part)
            old_logp = ref_logp = logp.detach()
            if objective.old is not None:
                old_logp = padded(objective.old, part, logp)
            if objective.reference is not None:
                ref_logp = padded(objective.reference, part, logp)
            importance = None
            if self.config.old_logprobs == "recomputed":
                recorded = padded(batch.recorded, part, logp)
                importance, drift = self._importance(old_logp, recorded, mask)
                for name, value in drift.items():
                    sums[name] = sums.get(name, 0.0) + value / positions
            terms = grpo_loss(
                logp,
                old_logp,
                ref_logp,
                padded(batch.advantage, part, logp),
                mask,
                clip_low=self.config.clip_low,
                clip_high=self.config.clip_high,
                kl_coef=self.config.kl_coef,
                weight=objective.weight[part].to(logp),
                total=objective.total,
                importance=importance,
            )
            terms.loss.backward()  # type: ignore[no-untyped-call]
            for name, value in terms._asdict().items():
                sums[name] += value.item()
        # A share, whatever the loss divides by.
        weighed = float((objective.weight[rows] * batch.lengths[rows]).sum())
        sums["clip_fraction"] *= objective.total / weighed
        norm = self._optimizer.step(sums["loss"])
        return {} if norm is None else sums | {"grad_norm": norm, "lr": self._optimizer.lr}

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Optimiser, reference, counters and generator; the policy keeps its own state.

        Args:
            reference: whether the reference is part of it. It never changes, and is as large as
                the policy: who saves often saves it once, as the policy that the learner was made
                with.
        """
        kept = self._reference.state_dict() if reference and self._reference is not None else None
        return self._optimizer.state_dict() | {
            "reference": kept,
            "updates": self.updates,
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
        self._rng.bit_generator.state = state["rng"]
        return self


def _logprobs(policy: Learnable, batch: Batch, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """(B, T) log-probabilities of some samples, and the mask of their sampled positions."""
    logp, mask = policy.logprobs([batch.samples[i] for i in part])
    lengths = batch.lengths[part]
    expected = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    if logp.shape != expected.shape or not torch.equal(mask.cpu(), expected):
        raise ValueError(
            f"The policy gave log-probabilities of {mask.sum(dim=1).tolist()} positions for "
            f"samples with {lengths.tolist()}; what is trained on must be what was sampled."
        )
    return logp, mask
