"""GRPO and its relatives: clip-higher, several means of the loss, a KL term, and what DAPO adds.

Reads top to bottom: loss, learner. How rollouts are judged is in ``advantages.py``, how decisions
become samples in ``segments.py``, these a batch in ``batch.py``; the settings are in
``settings.py``. The loss knows nothing of tasks, steps or models: it sees log-probabilities,
advantages and a mask of sampled positions. A choice is a sample with one position (T = 1), a
segment of a language model's tokens one with T.

Sources: GRPO (arXiv 2402.03300); clips, KL weight and token mean as in CoEvolve (arXiv 2604.15840,
Eq. 1, Table 9), the mean over trajectories as in Role-Agent (arXiv 2606.10917, Eq. 1), the constant
one as in Dr. GRPO (arXiv 2503.20783); the asymmetric clip is DAPO's (arXiv 2503.14476).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.curricula.groups import LOST
from coevo_gym.provision import extra_advice
from coevo_gym.seams import TrainablePolicy
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
from coevo_gym.trainers.parts import Advantage
from coevo_gym.trainers.settings import GRPOConfig
from coevo_gym.trajectory import EndReason, Group, Segment, Trajectory

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

OVERLONG = frozenset({EndReason.MAX_TOKENS, EndReason.CONTEXT_OVERFLOW})
"""Ends for want of tokens."""


# Loss.


class LossTerms(NamedTuple):
    """A loss with what went into it; all scalars, weighted means over the unmasked positions.

    Attributes:
        loss: to be minimised.
        policy_loss: the clipped surrogate, negated.
        kl: k3 estimate of the divergence from the reference.
        clip_fraction: share of positions whose surrogate is clipped.
    """

    loss: Tensor
    policy_loss: Tensor
    kl: Tensor
    clip_fraction: Tensor


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Non-negative, unbiased estimate of KL(policy, reference) at sampled positions."""
    gap = ref_logp - logp
    return torch.exp(gap) - gap - 1.0


def grpo_loss(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.20,
    clip_high: float | Tensor = 0.28,
    kl_coef: float = 1e-3,
    weight: Tensor | None = None,
    total: float | None = None,
    importance: Tensor | None = None,
) -> LossTerms:
    """The GRPO objective, as a mean over all sampled positions of the batch.

    Args:
        logp: (B, T) log-probabilities under the current weights.
        old_logp: (B, T) the same under the weights before the update.
        ref_logp: (B, T) the same under the reference.
        advantage: (B,) one for each sample, or (B, T) one for each position.
        mask: (B, T) bool, True where a position was sampled by the policy.
        clip_low: lower clip.
        clip_high: upper clip, one for all or (B,) one per sample.
        kl_coef: weight of the KL term.
        weight: (B,) weight of each sample's positions; default: 1, the token mean.
        total: what the sum is divided by; default: the positions of this batch. Passing the
            whole batch's number makes the losses of its parts add up to its own.
        importance: (B, T) weight of each position's surrogate, which corrects for a sampler that
            is not the old policy; the KL term has none. Default: 1.

    Returns:
        The loss and its terms.
    """
    high = torch.as_tensor(clip_high, dtype=logp.dtype, device=logp.device)
    high = high.reshape(-1, 1)  # (1, 1) or (B, 1)
    adv = advantage if advantage.ndim == 2 else advantage.unsqueeze(1)  # (B, T) or (B, 1)
    count = mask.sum().clamp(min=1) if total is None else total
    # Masked positions may hold anything, infinities too: they must not reach exp().
    ratio = torch.exp((logp - old_logp).masked_fill(~mask, 0.0))
    clipped = torch.minimum(ratio.clamp(min=1.0 - clip_low), 1.0 + high)
    surrogate = torch.minimum(ratio * adv, clipped * adv)
    if importance is not None:
        surrogate = surrogate * importance
    divergence = k3(logp.masked_fill(~mask, 0.0), ref_logp.masked_fill(~mask, 0.0))

    def mean(values: Tensor) -> Tensor:
        kept = values.masked_fill(~mask, 0.0)
        return (kept if weight is None else kept * weight.unsqueeze(1)).sum() / count

    policy_loss, kl = -mean(surrogate), mean(divergence)
    clip_fraction = mean((clipped * adv < ratio * adv).to(logp.dtype))
    return LossTerms(policy_loss + kl_coef * kl, policy_loss, kl, clip_fraction)


# Learner.


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
        weight: (D,) of the samples' positions; None for 1.
        total: what each step divides by; None for its number of positions.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    weight: Tensor | None
    total: float | None


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
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
            fused=sum(weight.numel() for weight in self._parameters) >= _FUSED_FROM,
        )
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
            Every term of the loss, averaged over the optimiser's steps, and counts.

        Raises:
            ValueError: if a step's action is not what its decision sampled, or the policy gives
                log-probabilities of other positions than those that were sampled.
            FloatingPointError: if the gradient is not finite.
        """
        whole = [group for group in groups if group.whole]
        if advantages is None:
            advantages = self.advantages(whole)
        elif len(advantages) == len(groups):
            advantages = [a for g, a in zip(groups, advantages, strict=True) if g.whole]
        metrics = group_metrics(groups, whole, self.config.outcome)
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
        ratio = torch.exp((old_logp - recorded).masked_fill(~mask, 0.0))
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
        started = perf_counter()
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
        steps = self.config.epochs * minibatches
        means = {name: value / steps for name, value in sums.items()}
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
        weight, total = None, None
        if config.loss_mean == "trajectory":
            weight = trajectory_weights(batch.owner, batch.lengths)
        elif config.loss_mean == "constant":
            total = config.constant_tokens * (int(batch.owner.max()) + 1) / minibatches
        return _Objective(old, reference, weight, total), times

    def _step(
        self, batch: Batch, objective: _Objective, rows: NDArray[np.int64]
    ) -> dict[str, float]:
        """One step of the optimiser on the samples at ``rows``."""
        self._optimizer.zero_grad(set_to_none=True)
        positions = float(batch.lengths[rows].sum())
        total = positions if objective.total is None else objective.total
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
                weight=None if objective.weight is None else objective.weight[part].to(logp),
                total=total,
                importance=importance,
            )
            terms.loss.backward()  # type: ignore[no-untyped-call]
            for name, value in terms._asdict().items():
                sums[name] += value.item()
        sums["clip_fraction"] *= total / positions  # a share, whatever the loss divides by
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm)
        if not math.isfinite(norm.item()):
            raise FloatingPointError(f"GRPO's gradient is not finite: {sums}. Lower lr?")
        self._optimizer.step()
        return sums | {"grad_norm": norm.item()}

    def state_dict(self) -> dict[str, Any]:
        """Optimiser, reference, counters and generator; the policy keeps its own state."""
        return {
            "optimizer": _on_cpu(self._optimizer.state_dict()),
            "reference": self._reference.state_dict() if self._reference is not None else None,
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; load the policy's own state first."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._reference is not None:
            self._reference = None  # two would need the memory of two
            self._reference = self.policy.frozen_copy()
            self._reference.load_state_dict(state["reference"])
        self.updates = int(state["updates"])
        self._rng.bit_generator.state = state["rng"]
        return self


def _on_cpu(state: Any) -> Any:
    """A copy of nested values with every tensor on the CPU: a GPU has no room for two."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(_on_cpu, state))
    return state


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
