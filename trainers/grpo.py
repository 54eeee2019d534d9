"""GRPO and its relatives: clip-higher, several means of the loss, a KL term, and what DAPO adds.

The learner. How rollouts are judged is in ``credit.py``, how decisions become samples in
``segments.py``, the settings in ``settings.py``; in ``update/`` these become a batch, and it says
what is minimised and how the weights change.

Sources: GRPO (arXiv 2402.03300); token mean as in CoEvolve (arXiv 2604.15840, Eq. 1), the mean over
trajectories as in Role-Agent (arXiv 2606.10917, Eq. 1), the constant one as in Dr. GRPO (arXiv
2503.20783).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.seams import Advantage, TrainablePolicy
from coevo_gym.core.trajectory import EndReason, Group, Segment, Trajectory
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.advantages import group_advantages
from coevo_gym.trainers.credit import Credit, credit_of
from coevo_gym.trainers.settings import CLIPS_NEVER_ACT, GRPOConfig
from coevo_gym.trainers.update.average import averaged
from coevo_gym.trainers.update.batch import (
    Batch,
    batch_metrics,
    check_recorded,
    evaluated,
    flatten,
    group_metrics,
    logprobs,
    of_usable,
    padded,
    parts,
    trajectory_weights,
)
from coevo_gym.trainers.update.importance import (
    importance_of,
    of_older_weights,
    renewed,
    shares,
)
from coevo_gym.trainers.update.loss import LossTerms, grpo_loss, k3
from coevo_gym.trainers.update.optimizer import decayed, guarded_adamw

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
        corrected: (D,) bool, whether a sample is weighted for a sampler that is not the old policy.
        idle: (D,) bool, whether a sample has no gradient, and is not read.
        weight: (D,) of the samples' positions.
        total: what each step divides by: the batch's number, over the minibatches. So the mean of
            their gradients is the gradient of the batch, however it is split.
    """

    old: Sequence[Tensor] | None
    reference: Sequence[Tensor] | None
    corrected: Tensor
    idle: Tensor
    weight: Tensor
    total: float


class GRPO:
    """Learns from whole groups; one update is one policy version.

    Args:
        policy: what to train. Choices must be sampled at temperature 1; a segment says its own.
        config: settings.
        credit: how rollouts are judged; default: as the settings say.
        seed: seed of the order of minibatches.

    Attributes:
        spent: share of the run's budget that is spent, for a learning rate that decays.
        average: the average of the weights that is to be evaluated in their place, or None.
    """

    def __init__(
        self,
        policy: Learnable,
        config: GRPOConfig | None = None,
        *,
        credit: Credit | None = None,
        seed: int = 0,
    ) -> None:
        self.policy = policy
        self.config = config or GRPOConfig()
        self.credit = credit or credit_of(self.config)
        self.updates = 0
        self._optimizer = guarded_adamw(self.config, (list(policy.parameters()), self.config.lr))
        if self.config.clips_never_act:
            _LOG.warning("%s", CLIPS_NEVER_ACT)
        self._reference = policy.frozen_copy() if self.config.kl_coef else None
        self.spent, self.average = 0.0, averaged(policy, self.config.average)
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """One advantage for each trajectory of each group, or with GiGPO one for each step."""
        return self.credit(groups, notes)

    def update(
        self,
        groups: Sequence[Group],
        advantages: Sequence[Sequence[Advantage]] | None = None,
        *,
        clip_high: Sequence[Sequence[float]] | None = None,
    ) -> dict[str, float]:
        """Learn from a batch of groups.

        Args:
            groups: what to learn from; those that are not whole, or staler than the settings
                allow, are left out and counted.
            advantages: one for each trajectory of each group, or one for each of its steps;
                default: :meth:`advantages`. Of the groups that are not left out only, or of all.
            clip_high: the upper clip of each trajectory, in the place of the settings' for all; of
                the same groups as ``advantages``.

        Returns:
            Every term of the loss, averaged over the steps that the optimiser took, and counts.
            ``idle_share`` is the share of samples that were not read because nothing acts on them;
            ``importance`` and the like are means over the positions of the others.
            If it took none, because none was finite, there are counts only.

        Raises:
            ValueError: if a step's action is not what its decision sampled, or the policy gives
                log-probabilities of other positions than those that were sampled.
            ConfigError: if cues were stripped, and the old log-probabilities are the recorded ones.
            TrainingDiverged: if three steps in a row, of this update and those before, have no
                finite loss and gradient.
        """
        usable = [group for group in groups if group.comparable(self.config.max_staleness)]
        if advantages is None:
            advantages = self.advantages(usable)
        advantages = of_usable(groups, advantages, self.config.max_staleness)
        metrics = group_metrics(groups, usable, advantages, self.config.outcome)
        trajectories = [t for group in usable for t in group.trajectories]
        judged = chain.from_iterable(advantages)
        learned = [not self._masked(trajectory) for trajectory in trajectories]
        metrics["masked_share"] = 1.0 - sum(learned) / len(learned) if learned else 0.0
        clips = None
        if clip_high is not None:
            own_clips = of_usable(groups, clip_high, self.config.max_staleness)
            clips = list(compress(chain.from_iterable(own_clips), learned))
        kept = list(compress(trajectories, learned))
        batch = flatten(kept, list(compress(judged, learned)), clip_high=clips)
        if not batch.samples:
            return metrics | {"decisions": 0.0}
        if self.config.old_logprobs == "recorded":
            check_recorded(batch, "Set learner.old_logprobs = 'recomputed'.")
        metrics |= self._optimise(batch)
        self.policy.version += 1
        self.updates += 1
        if self.average:
            self.average.update()
        return metrics

    def _masked(self, trajectory: Trajectory) -> bool:
        """Whether the loss leaves a trajectory out."""
        overlong = self.config.overlong == "mask" and trajectory.end_reason in OVERLONG
        return overlong or trajectory.end_reason.lost

    def _optimise(self, batch: Batch) -> dict[str, float]:
        size = len(batch.samples)
        minibatches = min(self.config.minibatches, size)
        stale = of_older_weights(batch, self.policy.version, self.config.max_staleness)
        objective, times = self._objective(batch, stale, minibatches)
        self._optimizer.decay = decayed(self.config, self.spent)
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
        means |= shares(batch, stale, self.config.max_staleness)
        if any(isinstance(sample, Segment) for sample in batch.samples):
            means |= times | {"step_s": perf_counter() - started}
            means["idle_share"] = float(objective.idle.float().mean())
        return means | batch_metrics(batch)

    def _objective(
        self, batch: Batch, stale: Tensor, minibatches: int
    ) -> tuple[_Objective, dict[str, float]]:
        """What all steps share, and the wall times of finding it."""
        config, started = self.config, perf_counter()
        recomputed = config.old_logprobs == "recomputed"
        idle = self._idle(batch)
        corrected = (torch.ones_like(stale) if recomputed else stale) & ~idle
        only_step = recomputed and config.epochs * minibatches == 1
        old: Sequence[Tensor] | None = None
        if not only_step:
            old = renewed(self.policy, batch, corrected, config.microbatch_tokens)
        old_done, reference = perf_counter(), None
        if self._reference is not None:
            reference = evaluated(self._reference, batch, config.microbatch_tokens)
        times = {"old_s": old_done - started, "reference_s": perf_counter() - old_done}
        weight, total = torch.ones(len(batch.samples)), float(batch.lengths.sum())
        if config.loss_mean == "trajectory":
            weight = trajectory_weights(batch.owner, batch.lengths)
        elif config.loss_mean == "constant":
            total = float(config.constant_tokens * (int(batch.owner.max()) + 1))
        return _Objective(old, reference, corrected, idle, weight, total / minibatches), times

    def _idle(self, batch: Batch) -> Tensor:
        """(D,) bool: whether a sample's advantages are all 0, and no other term acts on it.

        Choices are always read: noise such as dropout is drawn for each of them in turn, so that
        leaving some out would change what the others draw.
        """
        if self.config.kl_coef:
            return torch.zeros(len(batch.samples), dtype=torch.bool)
        both = zip(batch.samples, batch.advantage, strict=True)
        return torch.tensor([isinstance(s, Segment) and not bool(a.any()) for s, a in both])

    def _step(
        self, batch: Batch, objective: _Objective, rows: NDArray[np.int64]
    ) -> dict[str, float]:
        """One step of the optimiser on the samples at ``rows``; {} if it was skipped."""
        self._optimizer.zero_grad()
        read = rows[~objective.idle[rows].numpy()]
        positions = float(batch.lengths[read].sum())
        sums = dict.fromkeys(LossTerms._fields, 0.0)
        if not len(read):  # a step all the same: the optimiser's averages go on
            for weight in self.policy.parameters():
                weight.grad = torch.zeros_like(weight)
        for part in parts(read, batch.tokens, self.config.microbatch_tokens) if len(read) else ():
            logp, mask = logprobs(self.policy, batch, part)
            clip_high = self.config.clip_high if batch.clip_high is None else batch.clip_high[part]
            old_logp = ref_logp = logp.detach()
            if objective.old is not None:
                old_logp = padded(objective.old, part, logp)
            if objective.reference is not None:
                ref_logp = padded(objective.reference, part, logp)
            importance = None
            if objective.corrected.any():
                cap, corrected = self.config.importance_cap, objective.corrected
                importance, drift = importance_of(
                    batch, part, old_logp, mask, corrected=corrected, cap=cap
                )
                for name, value in drift.items():
                    sums[name] = sums.get(name, 0.0) + value / positions
            terms = grpo_loss(
                logp,
                old_logp,
                ref_logp,
                padded(batch.advantage, part, logp),
                mask,
                clip_low=self.config.clip_low,
                clip_high=clip_high,
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
