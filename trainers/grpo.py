"""GRPO with clip-higher, a mean over tokens or trajectories, and a KL term in the loss.

Reads top to bottom: advantages, loss, learner; the settings are in ``settings.py``. The loss knows
nothing of tasks, steps or models: it sees log-probabilities, advantages, a mask and an upper clip
for each decision. A choice is a decision with one position (T = 1), a language model's answer one
with T tokens.

Sources: GRPO (arXiv 2402.03300); clips, KL weight and token mean as in CoEvolve (arXiv 2604.15840,
Eq. 1, Table 9), the mean over trajectories as in Role-Agent (arXiv 2606.10917, Eq. 1); the
asymmetric clip is DAPO's (arXiv 2503.14476).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.seams import TrainablePolicy
from coevo_gym.trainers.settings import GRPOConfig
from coevo_gym.trajectory import ChoiceDecision, Decision, Group, Step

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError("GRPO needs PyTorch. Run `pip install 'coevo-gym[train]'`.") from error

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


# Advantages.


def group_advantages(
    rewards: Tensor, mask: Tensor | None = None, *, normalise_std: bool = True, eps: float = 1e-6
) -> Tensor:
    """Judge each rollout against the others of its group.

    Args:
        rewards: (G, K) outcome of each of the K rollouts of G tasks, any scale.
        mask: (G, K) bool, False where a rollout was lost; it is left out of mean and deviation.
        normalise_std: divide by the group's sample standard deviation.
        eps: added to the standard deviation.

    Returns:
        (G, K) advantages; 0 where masked, and all 0 in a group whose rewards are equal or of
        which fewer than two are left.

    Raises:
        ValueError: if K < 2, because a group of one has no baseline.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"group_advantages needs (G, K) rewards with K >= 2, actual shape: "
            f"{tuple(rewards.shape)}"
        )
    valid = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask
    count = valid.sum(dim=1, keepdim=True)
    kept = rewards.masked_fill(~valid, 0.0)
    centred = (kept - kept.sum(dim=1, keepdim=True) / count.clamp(min=1)).masked_fill(~valid, 0.0)
    if normalise_std:
        variance = centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + eps)
    highest = rewards.masked_fill(~valid, -math.inf).amax(dim=1, keepdim=True)
    lowest = rewards.masked_fill(~valid, math.inf).amin(dim=1, keepdim=True)
    # Rounding in the mean of equal rewards, divided by eps, would not be 0.
    return centred.masked_fill((highest <= lowest) | (count < 2), 0.0)


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
) -> LossTerms:
    """The GRPO objective, as a mean over all sampled positions of the batch.

    Args:
        logp: (B, T) log-probabilities under the current weights.
        old_logp: (B, T) the same under the weights that sampled.
        ref_logp: (B, T) the same under the reference.
        advantage: (B,) advantage of each decision.
        mask: (B, T) bool, True where a position was sampled by the policy.
        clip_low: lower clip.
        clip_high: upper clip, one for all or (B,) one per decision.
        kl_coef: weight of the KL term.
        weight: (B,) weight of each decision's positions; default: 1, the token mean.
        total: positions that the mean divides by; default: those of this batch. Passing the
            whole batch's number makes the losses of its parts add up to its own.

    Returns:
        The loss and its terms.
    """
    high = torch.as_tensor(clip_high, dtype=logp.dtype).reshape(-1, 1)  # (1, 1) or (B, 1)
    adv = advantage.unsqueeze(1)  # (B, 1)
    count = mask.sum().clamp(min=1) if total is None else total
    # Masked positions may hold anything, infinities too: they must not reach exp().
    ratio = torch.exp((logp - old_logp).masked_fill(~mask, 0.0))
    clipped = torch.minimum(ratio.clamp(min=1.0 - clip_low), 1.0 + high)
    surrogate = torch.minimum(ratio * adv, clipped * adv)
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


class _Batch(NamedTuple):
    """The D decisions of a batch of groups, one after the other."""

    decisions: list[Decision]
    advantage: Tensor  # (D,)
    owner: Tensor  # (D,), which trajectory a decision belongs to
    old_logp: Tensor  # (D, T), NaN beyond a decision's own length


def _flatten(groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> _Batch:
    """All decisions of the groups, each with its trajectory's advantage."""
    decisions: list[Decision] = []
    per_decision: list[float] = []
    owner: list[int] = []
    for group, values in zip(groups, advantages, strict=True):
        for trajectory, value in zip(group.trajectories, values, strict=True):
            taken = [_checked(step) for step in trajectory.steps if step.decision is not None]
            decisions += taken
            per_decision += [value] * len(taken)
            owner += [owner[-1] + 1 if owner else 0] * len(taken)
    rows = [torch.tensor(_sampled_logprobs(decision)) for decision in decisions]
    old_logp = torch.full((len(rows), max(map(len, rows), default=0)), math.nan)
    for index, row in enumerate(rows):
        old_logp[index, : len(row)] = row
    return _Batch(decisions, torch.tensor(per_decision), torch.tensor(owner), old_logp)


def trajectory_weights(owner: Tensor, lengths: Tensor) -> Tensor:
    """Weights that make the mean over positions one over trajectories of their own means.

    Args:
        owner: (D,) which trajectory a decision belongs to, counted from 0.
        lengths: (D,) sampled positions of each decision.

    Returns:
        (D,) weights; over all positions they add up to the number of positions.
    """
    per_trajectory = torch.zeros(int(owner.max()) + 1).index_add(0, owner, lengths.float())
    return lengths.sum() / len(per_trajectory) / per_trajectory[owner]


def _checked(step: Step) -> Decision:
    decision = step.decision
    assert decision is not None
    if isinstance(decision, ChoiceDecision):
        chosen = decision.choices[decision.index]
        if chosen != step.action:
            raise ValueError(
                f"A step's decision chose {chosen!r}, but its action was {step.action!r}; "
                "only what was sampled can be learned from."
            )
    return decision


def _sampled_logprobs(decision: Decision) -> tuple[float, ...]:
    if isinstance(decision, ChoiceDecision):
        return (decision.logprob,)
    return decision.logprobs


def _parts(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """``rows`` in pieces of at most ``size``."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _group_metrics(
    groups: Sequence[Group], whole: Sequence[Group], outcome: str
) -> dict[str, float]:
    """How much of a batch can teach anything."""
    outcomes = [[float(getattr(t, outcome)) for t in group.trajectories] for group in whole]
    flat = [value for values in outcomes for value in values]
    equal = sum(min(values) == max(values) for values in outcomes)
    return {
        "groups": float(len(groups)),
        "broken_share": 1.0 - len(whole) / len(groups) if groups else 0.0,
        "degenerate_share": equal / len(whole) if whole else 0.0,
        "reward": sum(flat) / len(flat) if flat else 0.0,
    }


class GRPO:
    """Learns from whole groups; one update is one policy version.

    Args:
        policy: what to train. Its decisions must be sampled at temperature 1: their recorded
            log-probabilities are the old ones of the ratio.
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
        self._optimizer = torch.optim.Adam(self._parameters, lr=self.config.lr)
        self._reference = policy.frozen_copy()
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        """One advantage for each trajectory of each group."""
        found = []
        for group in groups:
            outcomes = [getattr(t, self.config.outcome) for t in group.trajectories]
            rewards = torch.tensor([outcomes], dtype=torch.float64)
            one = group_advantages(rewards, normalise_std=self.config.normalise_std)
            found.append([float(value) for value in one[0]])
        return found

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[float]] | None = None
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Args:
            groups: what to learn from; those that are not whole are left out and counted.
            advantages: one per trajectory of each group; default: :meth:`advantages`. Of whole
                groups only, or of all.

        Returns:
            Every term of the loss, averaged over the optimiser's steps, and counts.
        """
        whole = [group for group in groups if group.whole]
        if advantages is None:
            advantages = self.advantages(whole)
        elif len(advantages) == len(groups):
            advantages = [a for g, a in zip(groups, advantages, strict=True) if g.whole]
        metrics = _group_metrics(groups, whole, self.config.outcome)
        batch = _flatten(whole, advantages)
        if not batch.decisions:
            return metrics | {"decisions": 0.0}
        metrics |= self._optimise(batch)
        self.policy.version += 1
        self.updates += 1
        return metrics

    def _optimise(self, batch: _Batch) -> dict[str, float]:
        ref_logp = self._reference_logprobs(batch)
        weight = None
        if self.config.loss_mean == "trajectory":
            weight = trajectory_weights(batch.owner, (~batch.old_logp.isnan()).sum(dim=1))
        sums: dict[str, float] = {}
        self.policy.train(True)
        try:
            for _ in range(self.config.epochs):
                order = self._rng.permutation(len(batch.decisions))
                for rows in np.array_split(order, min(self.config.minibatches, len(order))):
                    for name, value in self._step(batch, ref_logp, weight, np.sort(rows)).items():
                        sums[name] = sums.get(name, 0.0) + value
        finally:
            self.policy.train(False)
        steps = self.config.epochs * min(self.config.minibatches, len(batch.decisions))
        entropy = -float(batch.old_logp[~batch.old_logp.isnan()].mean())
        means = {name: value / steps for name, value in sums.items()}
        return means | {"decisions": float(len(batch.decisions)), "entropy": entropy}

    def _step(
        self,
        batch: _Batch,
        ref_logp: Tensor | None,
        weight: Tensor | None,
        rows: NDArray[np.int64],
    ) -> dict[str, float]:
        """One step of the optimiser on the decisions at ``rows``."""
        self._optimizer.zero_grad(set_to_none=True)
        total = float((~batch.old_logp[rows].isnan()).sum())
        sums = dict.fromkeys(LossTerms._fields, 0.0)
        for part in _parts(rows, self.config.microbatch_decisions):
            logp, mask = self.policy.logprobs([batch.decisions[i] for i in part])
            old_logp = batch.old_logp[part, : logp.shape[1]]
            terms = grpo_loss(
                logp,
                old_logp,
                logp.detach() if ref_logp is None else ref_logp[part, : logp.shape[1]],
                batch.advantage[part],
                mask,
                clip_low=self.config.clip_low,
                clip_high=self.config.clip_high,
                kl_coef=self.config.kl_coef,
                weight=None if weight is None else weight[part],
                total=total,
            )
            terms.loss.backward()  # type: ignore[no-untyped-call]
            for name, value in terms._asdict().items():
                sums[name] += value.item()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm)
        if not math.isfinite(norm.item()):
            raise FloatingPointError(f"GRPO's gradient is not finite: {sums}. Lower lr?")
        self._optimizer.step()
        return sums | {"grad_norm": norm.item()}

    def _reference_logprobs(self, batch: _Batch) -> Tensor | None:
        """(D, T) log-probabilities under the reference; None if no term needs them."""
        if self.config.kl_coef == 0:
            return None
        found = torch.full_like(batch.old_logp, math.nan)
        with torch.no_grad():
            for part in _parts(np.arange(len(found)), self.config.microbatch_decisions):
                logp, _ = self._reference.logprobs([batch.decisions[i] for i in part])
                found[part, : logp.shape[1]] = logp
        return found

    def state_dict(self) -> dict[str, Any]:
        """Optimiser, reference, counters and generator; the policy keeps its own state."""
        return {
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "reference": self._reference.state_dict(),
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; load the policy's own state first."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._reference = self.policy.frozen_copy()
        self._reference.load_state_dict(state["reference"])
        self.updates = int(state["updates"])
        self._rng.bit_generator.state = state["rng"]
        return self
