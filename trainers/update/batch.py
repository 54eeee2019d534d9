"""Batches of samples, and functions that split them into parts for forward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Advantage, PolicyOutputs, TrainablePolicy
from coevo_gym.core.trajectory import (
    UNKNOWN_VERSION,
    EndReason,
    Group,
    Sample,
    Segment,
    TokenDecision,
    Trajectory,
)
from coevo_gym.trainers.segments import n_sampled, n_tokens, recorded_logprobs
from coevo_gym.trainers.settings import GRPOConfig, PPOConfig, UpdateConfig
from coevo_gym.trainers.token_advantages import assign_advantages, has_learning_signal
from coevo_gym.trainers.update.ranks import current_ranks

ValueT = TypeVar("ValueT")
_ROUNDING = 1e-3
"""Amount by which rounding may lift a log-probability above 0."""


class Batch(NamedTuple):
    """A batch of D samples from groups. A row contains one value per sampled position."""

    samples: list[Sample]
    owner: Tensor  # (D,), index of the trajectory a sample belongs to
    lengths: Tensor  # (D,), sampled positions of a sample
    tokens: NDArray[np.int64]  # (D,), tokens of its forward pass
    advantage: Sequence[Tensor]  # D rows
    recorded: Sequence[Tensor]  # D rows, log-probabilities under the sampler
    n_decisions: int
    stripped: Tensor  # (D,) bool, True if cues seen by the sampler were stripped from the sample
    versions: Tensor  # (D,), oldest weight version that sampled part of a sample
    trajectories: Sequence[Trajectory]  # source trajectories
    clip_high: Tensor | None = None  # (D,), upper clip of a sample's trajectory
    off_policy: bool = False  # True if older weights may have sampled part of the batch


def batch_of(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]] | None,
    config: GRPOConfig | PPOConfig,
    *,
    judge: Callable[[Sequence[Group]], Sequence[Sequence[Advantage]]],
    masked: Collection[EndReason] = (),
    clip_high: Sequence[Sequence[float]] | None = None,
) -> tuple[Batch, dict[str, float]]:
    """Return the samples from all usable groups, with metrics of the groups and the batch.

    The metrics count skipped groups and trajectories, and the sampled positions with an advantage
    other than 0 as ``tokens_with_gradient``.

    Args:
        groups: groups; incomplete or too stale groups are skipped.
        advantages: one per trajectory, for all groups or for the usable groups; None to compute
            them for the usable groups.
        config: settings for the outcome to learn from and the upper clip of cued trajectories.
        judge: function that computes advantages.
        masked: end reasons of further trajectories to leave out, in addition to lost trajectories.
        clip_high: upper clip of each trajectory, for the same groups as ``advantages``; default:
            from the settings. A single clip for all trajectories is not stored in the batch.

    Raises:
        ValueError: if a group's number of advantages differs from its number of trajectories.
    """
    usable = [group for group in groups if group.is_comparable]
    values = judge(usable) if advantages is None else advantages
    values = usable_values(groups, values)
    for group, row in zip(usable, values, strict=True):
        if len(row) != len(group.trajectories):
            raise ValueError(
                f"Group {group.id} has {len(group.trajectories)} trajectories but {len(row)} "
                "advantages. Pass one advantage for each trajectory."
            )
    metrics = group_metrics(groups, usable, values, config.outcome)
    trajectories = [t for group in usable for t in group.trajectories]
    learned = [not (t.end_reason.is_lost or t.end_reason in masked) for t in trajectories]
    metrics["masked_share"] = 1.0 - sum(learned) / len(learned) if learned else 0.0
    clips = None
    if clip_high is None and isinstance(config, GRPOConfig):
        clip_high = upper_clips(usable, config)
    if clip_high is not None:
        own_clips = usable_values(groups, clip_high)
        clips = list(compress(chain.from_iterable(own_clips), learned))
    judged = list(compress(chain.from_iterable(values), learned))
    batch = flatten_trajectories(list(compress(trajectories, learned)), judged, clip_high=clips)
    metrics["tokens_with_gradient"] = count_with_gradient(batch)
    return batch._replace(off_policy=any(group.max_staleness for group in usable)), metrics


def upper_clips(groups: Sequence[Group], config: GRPOConfig) -> list[list[float]] | None:
    """Return the upper clipping bound for each trajectory, by group.

    Return None if the settings have one clip for all trajectories.
    """
    cued = config.clip_high_cued
    if cued is None:
        return None
    return [
        [
            cued if _has_stripped_cues(trajectory) else config.clip_high
            for trajectory in group.trajectories
        ]
        for group in groups
    ]


def _has_stripped_cues(trajectory: Trajectory) -> bool:
    decisions = (step.decision for step in trajectory.steps)
    return any(isinstance(d, TokenDecision) and d.trained_prompt_ids is not None for d in decisions)


def flatten_trajectories(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Advantage],
    *,
    clip_high: Sequence[float] | None = None,
) -> Batch:
    """Return the trajectories' samples, with the advantage of each position.

    By default, all trajectories have the same upper clip, which is not stored in the batch.
    """
    samples: list[Sample] = []
    owner: list[int] = []
    per_position: list[float] = []
    clips: list[float] = []
    versions: list[int] = []
    n_decisions = 0
    upper = [0.0] * len(trajectories) if clip_high is None else clip_high
    for trajectory, value, clip in zip(trajectories, advantages, upper, strict=True):
        mine = assign_advantages(trajectory, value)
        clips += [clip] * len(mine.samples)
        samples += mine.samples
        own_versions = (sample.policy_version for sample in mine.samples)
        begun = trajectory.policy_version
        versions += [begun if version == UNKNOWN_VERSION else version for version in own_versions]
        owner += [owner[-1] + 1 if owner else 0] * len(mine.samples)
        per_position += chain.from_iterable(mine.advantages)
        n_decisions += len(mine.decisions)
    lengths = [n_sampled(sample) for sample in samples]
    recorded = [value for sample in samples for value in recorded_logprobs(sample)]
    _check_logprob_range(recorded)
    return Batch(
        samples,
        torch.tensor(owner, dtype=torch.int64),
        torch.tensor(lengths, dtype=torch.int64),
        np.array([n_tokens(sample) for sample in samples], dtype=np.int64),
        torch.split(torch.tensor(per_position), lengths),
        torch.split(torch.tensor(recorded), lengths),
        n_decisions,
        torch.tensor([isinstance(one, Segment) and one.stripped for one in samples]).bool(),
        torch.tensor(versions, dtype=torch.int64),
        trajectories,
        None if clip_high is None else torch.tensor(clips),
    )


def _check_logprob_range(recorded: Sequence[float]) -> None:
    """Check that recorded log-probabilities are finite and at most 0.

    Raises:
        ValueError: if one is not finite, or exceeds 0 by more than a rounding error.
    """
    wrong = [value for value in recorded if not -math.inf < value <= _ROUNDING]
    if wrong:
        raise ValueError(
            f"{len(wrong)} of {len(recorded)} recorded log-probabilities are impossible, such as "
            f"{wrong[0]}. The policy that samples must record the natural logarithm of each "
            "sampled token's or choice's probability, which is finite and at most 0."
        )


def loss_weights(batch: Batch, config: GRPOConfig) -> tuple[Tensor, float]:
    """Return a loss weight for each of the D samples, and the divisor for the weighted sum."""
    weight, total = torch.ones(len(batch.samples)), float(batch.lengths.sum())
    if config.loss_mean == "trajectory":
        weight = trajectory_weights(batch.owner, batch.lengths)
    elif config.loss_mean == "constant":
        total = float(config.constant_tokens * (int(batch.owner.max()) + 1))
    return weight, total


def trajectory_weights(owner: Tensor, lengths: Tensor) -> Tensor:
    """Return per-position weights that make each trajectory count equally in a mean.

    Args:
        owner: (D,) index of the trajectory of each sample, counted from 0.
        lengths: (D,) sampled positions of each sample.

    Returns:
        (D,) weights; summed over all positions, they equal the number of positions.
    """
    per_trajectory = torch.zeros(int(owner.max()) + 1).index_add(0, owner, lengths.float())
    return lengths.sum() / len(per_trajectory) / per_trajectory[owner]


def n_steps_per_pass(config: UpdateConfig, n_samples: int) -> float:
    """Return the number of optimiser steps per pass, counting a smaller last step as a fraction.

    A step's sum is divided by the batch's divisor over this number.

    Example:
        >>> n_steps_per_pass(UpdateConfig(minibatch_samples=256), 3_008)
        11.75
    """
    if config.minibatch_samples is None:
        return float(min(config.minibatches, n_samples))
    return n_samples / min(config.minibatch_samples, n_samples)


def split_minibatches(order: NDArray[np.int64], config: UpdateConfig) -> list[NDArray[np.int64]]:
    """Split the samples of one pass, in their order, into the minibatches of its steps."""
    size = config.minibatch_samples
    if size is None:
        return np.array_split(order, min(config.minibatches, len(order)))
    return np.split(order, range(size, len(order), size))


def check_positions(logp: Tensor, mask: Tensor, lengths: Tensor) -> None:
    """Check that a policy returned log-probabilities for exactly the sampled positions.

    Args:
        logp: (B, T) log-probabilities returned by the policy.
        mask: (B, T) bool, True for valid entries.
        lengths: (B,) sampled positions of each sample.

    Raises:
        ValueError: if the positions differ.
    """
    expected = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    if logp.shape != expected.shape or not torch.equal(mask.cpu(), expected):
        raise ValueError(
            f"The policy returned log-probabilities for {mask.sum(dim=1).tolist()} positions, but "
            f"the samples have {lengths.tolist()}. Only sampled positions can be trained on."
        )


def check_no_stripped_cues(batch: Batch, advice: str) -> None:
    """Check that recorded log-probabilities can be used as old log-probabilities.

    Raises:
        ConfigError: if cues were stripped from a sample, because its log-probabilities were then
            recorded for another prompt.
    """
    if n_stripped := int(batch.stripped.sum()):
        raise ConfigError(
            f"Cues were stripped from {n_stripped} of {len(batch.samples)} samples, so their "
            "log-probabilities were recorded for different prompts and cannot be used as old "
            f"log-probabilities. {advice}"
        )


def policy_outputs(
    policy: Any,
    batch: Batch,
    part: NDArray[np.int64],
    *,
    head: torch.nn.Module | None = None,
    entropy: bool = False,
) -> PolicyOutputs:
    """Compute a policy's outputs for the given samples in one forward pass.

    Args:
        policy: a trainable policy, with the method ``logprobs_and_entropy`` for entropies, or else
            ``logprobs_and_values`` for values.
        batch: samples.
        part: (B,) indices of the samples.
        head: value head; None for no values.
        entropy: True to compute entropies.

    Raises:
        ValueError: as in :func:`check_positions`.
    """
    samples = [batch.samples[i] for i in part]
    if entropy:
        outputs: PolicyOutputs = policy.logprobs_and_entropy(samples, head)
    elif head is not None:
        logp, mask, values = policy.logprobs_and_values(samples, head)
        outputs = PolicyOutputs(logp, mask, values=values)
    else:
        outputs = PolicyOutputs(*policy.logprobs(samples))
    check_positions(outputs.logp, outputs.mask, batch.lengths[part])
    return outputs


def detached_logprobs(
    policy: TrainablePolicy, batch: Batch, most: int, places: NDArray[np.int64] | None = None
) -> list[Tensor]:
    """Compute log-probabilities without gradients, one row per sample. Ranks share the work.

    ``places`` selects samples; None for all. A forward pass has at most ``most`` tokens.
    """
    computed: dict[int, Tensor] = {}
    wanted = np.arange(len(batch.samples)) if places is None else places
    ranks = current_ranks()
    with torch.no_grad():
        for part, weight in ranks.share_rows(wanted, batch.tokens, most):
            outputs = policy_outputs(policy, batch, part)
            rows = torch.split(outputs.logp[outputs.mask], batch.lengths[part].tolist())
            if weight:
                computed.update(zip(part.tolist(), rows, strict=True))
    computed = ranks.merge(computed)
    return [computed[place] for place in wanted.tolist()]


def usable_values(groups: Sequence[Group], values: Sequence[ValueT]) -> list[ValueT]:
    """Keep the values of usable groups; return an already filtered list unchanged."""
    if len(values) != len(groups):
        return list(values)
    both = zip(groups, values, strict=True)
    return [value for group, value in both if group.is_comparable]


def pad_rows(rows: Sequence[Tensor], part: NDArray[np.int64], like: Tensor) -> Tensor:
    """Stack rows into a zero-padded (B, T) tensor with the device and dtype of ``like``."""
    return pad_sequence([rows[i] for i in part], batch_first=True).to(like)


def group_metrics(
    groups: Sequence[Group],
    usable: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    outcome: str,
) -> dict[str, float]:
    """Return metrics for all groups and for usable groups, ignoring lost rollouts.

    ``outcome`` is the trajectory attribute used as the reward.
    """
    arrived = [[t for t in group.trajectories if not t.end_reason.is_lost] for group in usable]
    outcomes = [[float(getattr(t, outcome)) for t in group] for group in arrived]
    flat = [value for values in outcomes for value in values]
    solved = [t.success for group in arrived for t in group]
    idle = sum(not has_learning_signal(values) for values in advantages)
    return {
        "groups": float(len(groups)),
        "broken_groups": float(len(groups) - len(usable)),
        "degenerate_share": idle / len(usable) if usable else 0.0,
        "reward": sum(flat) / len(flat) if flat else 0.0,
        "success": sum(solved) / len(solved) if solved else 0.0,
    }


def count_with_gradient(batch: Batch) -> float:
    """Count the sampled positions of a batch whose advantage is not 0."""
    return float(sum(int(row.count_nonzero()) for row in batch.advantage))


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Return metrics for a batch, such as its size and the spread of its advantages."""
    advantage, recorded = torch.cat([*batch.advantage]), torch.cat([*batch.recorded])
    return {
        "decisions": float(batch.n_decisions),
        "samples": float(len(batch.samples)),
        "tokens_sampled": float(len(recorded)),
        "tokens": float(batch.tokens.sum()),
        "advantage_std": float(advantage.std(correction=0)),
        "entropy": -float(recorded.mean()),
    }
