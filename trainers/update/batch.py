"""The samples of a batch of groups, and the pieces in which they pass through a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain, compress
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Advantage, TrainablePolicy
from coevo_gym.core.trajectory import (
    UNKNOWN_VERSION,
    EndReason,
    Group,
    Sample,
    Segment,
    TokenDecision,
    Trajectory,
)
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.segments import n_sampled, n_tokens, recorded_logprobs
from coevo_gym.trainers.settings import GRPOConfig, PPOConfig
from coevo_gym.trainers.spread import spread, teaches

try:
    import torch
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence
except ModuleNotFoundError as error:
    raise ImportError(f"GRPO needs PyTorch. {extra_advice('train')}.") from error

ValueT = TypeVar("ValueT")


class Batch(NamedTuple):
    """The D samples of a batch of groups; a row has one value for each sampled position."""

    samples: list[Sample]
    owner: Tensor  # (D,), which trajectory a sample belongs to
    lengths: Tensor  # (D,), sampled positions of a sample
    tokens: NDArray[np.int64]  # (D,), tokens of its forward pass
    advantage: Sequence[Tensor]  # D rows
    recorded: Sequence[Tensor]  # D rows, log-probabilities under the sampler
    n_decisions: int
    stripped: Tensor  # (D,) bool, whether the sampler was told cues that the sample does not hold
    versions: Tensor  # (D,), oldest version of the weights that sampled in a sample
    trajectories: Sequence[Trajectory]  # what was flattened
    clip_high: Tensor | None = None  # (D,), upper clip of a sample's trajectory
    off_policy: bool = False  # whether older weights may have sampled some of it


def batch_of(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]] | None,
    config: GRPOConfig | PPOConfig,
    *,
    judge: Callable[[Sequence[Group]], Sequence[Sequence[Advantage]]],
    masked: Collection[EndReason] = (),
    clip_high: Sequence[Sequence[float]] | None = None,
) -> tuple[Batch, dict[str, float]]:
    """Return the samples of all usable groups, and counts of what was left out.

    Args:
        groups: those that are not whole, or too stale, are left out.
        advantages: one for each trajectory of each group, or of each usable group; None to judge
            the usable groups.
        config: says which outcome is learned from, and the upper clip of cued trajectories.
        judge: judges groups.
        masked: ends of the trajectories that are left out, beside lost ones.
        clip_high: upper clip of each trajectory, of the same groups as ``advantages``; default:
            as the settings say; one for all is not held by the batch.

    Raises:
        ValueError: if a group has another number of advantages than of trajectories.
    """
    usable = [group for group in groups if group.comparable]
    values = judge(usable) if advantages is None else advantages
    values = of_usable(groups, values)
    for group, row in zip(usable, values, strict=True):
        if len(row) != len(group.trajectories):
            raise ValueError(
                f"Group {group.id} has {len(group.trajectories)} trajectories and {len(row)} "
                "advantages. Pass one advantage for each trajectory."
            )
    metrics = group_metrics(groups, usable, values, config.outcome)
    trajectories = [t for group in usable for t in group.trajectories]
    learned = [not (t.end_reason.lost or t.end_reason in masked) for t in trajectories]
    metrics["masked_share"] = 1.0 - sum(learned) / len(learned) if learned else 0.0
    clips = None
    if clip_high is None and isinstance(config, GRPOConfig):
        clip_high = upper_clips(usable, config)
    if clip_high is not None:
        own_clips = of_usable(groups, clip_high)
        clips = list(compress(chain.from_iterable(own_clips), learned))
    judged = list(compress(chain.from_iterable(values), learned))
    batch = flatten(list(compress(trajectories, learned)), judged, clip_high=clips)
    return batch._replace(off_policy=any(group.max_staleness for group in usable)), metrics


def upper_clips(groups: Sequence[Group], config: GRPOConfig) -> list[list[float]] | None:
    """Return the upper clip of each trajectory by whether cues were stripped from its prompts.

    Returns:
        None where the settings have one clip for all.
    """
    cued = config.clip_high_cued
    if cued is None:
        return None
    return [
        [cued if _stripped(trajectory) else config.clip_high for trajectory in group.trajectories]
        for group in groups
    ]


def _stripped(trajectory: Trajectory) -> bool:
    decisions = (step.decision for step in trajectory.steps)
    return any(isinstance(d, TokenDecision) and d.trained_prompt_ids is not None for d in decisions)


def flatten(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Advantage],
    *,
    clip_high: Sequence[float] | None = None,
) -> Batch:
    """All samples of the trajectories, each position with its trajectory's or step's advantage.

    Args:
        trajectories: what was sampled.
        advantages: of each of them.
        clip_high: upper clip of each of them; default: one for all, which the batch does not hold.
    """
    found: list[Sample] = []
    owner: list[int] = []
    per_position: list[float] = []
    clips: list[float] = []
    versions: list[int] = []
    n_decisions = 0
    upper = [0.0] * len(trajectories) if clip_high is None else clip_high
    for trajectory, value, clip in zip(trajectories, advantages, upper, strict=True):
        mine = spread(trajectory, value)
        clips += [clip] * len(mine.samples)
        found += mine.samples
        told = (sample.policy_version for sample in mine.samples)
        begun = trajectory.policy_version
        versions += [begun if version == UNKNOWN_VERSION else version for version in told]
        owner += [owner[-1] + 1 if owner else 0] * len(mine.samples)
        per_position += chain.from_iterable(mine.advantages)
        n_decisions += len(mine.decisions)
    lengths = [n_sampled(sample) for sample in found]
    recorded = [value for sample in found for value in recorded_logprobs(sample)]
    return Batch(
        found,
        torch.tensor(owner, dtype=torch.int64),
        torch.tensor(lengths, dtype=torch.int64),
        np.array([n_tokens(sample) for sample in found], dtype=np.int64),
        torch.split(torch.tensor(per_position), lengths),
        torch.split(torch.tensor(recorded), lengths),
        n_decisions,
        torch.tensor([isinstance(one, Segment) and one.stripped for one in found]).bool(),
        torch.tensor(versions, dtype=torch.int64),
        trajectories,
        None if clip_high is None else torch.tensor(clips),
    )


def loss_mean(batch: Batch, config: GRPOConfig) -> tuple[Tensor, float]:
    """Return the (D,) weights of the samples' positions, and the divisor of their sum."""
    weight, total = torch.ones(len(batch.samples)), float(batch.lengths.sum())
    if config.loss_mean == "trajectory":
        weight = trajectory_weights(batch.owner, batch.lengths)
    elif config.loss_mean == "constant":
        total = float(config.constant_tokens * (int(batch.owner.max()) + 1))
    return weight, total


def trajectory_weights(owner: Tensor, lengths: Tensor) -> Tensor:
    """Weights that make the mean over positions one over trajectories of their own means.

    Args:
        owner: (D,) which trajectory a sample belongs to, counted from 0.
        lengths: (D,) sampled positions of each sample.

    Returns:
        (D,) weights; over all positions they add up to the number of positions.
    """
    per_trajectory = torch.zeros(int(owner.max()) + 1).index_add(0, owner, lengths.float())
    return lengths.sum() / len(per_trajectory) / per_trajectory[owner]


def parts(rows: NDArray[np.int64], tokens: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """``rows`` in pieces of at most ``most`` tokens, or of one row."""
    cuts, inside = [], 0
    for place, row in enumerate(rows):
        if inside and inside + tokens[row] > most:
            cuts.append(place)
            inside = 0
        inside += int(tokens[row])
    return np.split(rows, cuts)


def check_positions(logp: Tensor, mask: Tensor, lengths: Tensor) -> None:
    """Refuse log-probabilities of other positions than those that were sampled.

    Args:
        logp: (B, T) what a policy gave.
        mask: (B, T) bool, what counts of it.
        lengths: (B,) sampled positions of each sample.

    Raises:
        ValueError: if they differ.
    """
    expected = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    if logp.shape != expected.shape or not torch.equal(mask.cpu(), expected):
        raise ValueError(
            f"The policy gave log-probabilities of {mask.sum(dim=1).tolist()} positions for "
            f"samples with {lengths.tolist()}; what is trained on must be what was sampled."
        )


def check_recorded(batch: Batch, advice: str) -> None:
    """Refuse recorded log-probabilities as those of the old policy where they are of other prompts.

    Args:
        batch: what is to be learned from.
        advice: what to do about it.

    Raises:
        ConfigError: if cues were stripped from a sample.
    """
    if n_stripped := int(batch.stripped.sum()):
        raise ConfigError(
            f"Cues were stripped from {n_stripped} of {len(batch.samples)} samples, so what their "
            "sampler recorded are the log-probabilities of answers to other prompts, not those of "
            f"the old policy. {advice}"
        )


def logprobs(
    policy: TrainablePolicy, batch: Batch, part: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probabilities of some samples, and the mask of their sampled positions.

    Raises:
        ValueError: as :func:`check_positions`.
    """
    logp, mask = policy.logprobs([batch.samples[i] for i in part])
    check_positions(logp, mask, batch.lengths[part])
    return logp, mask


def evaluated(
    policy: TrainablePolicy, batch: Batch, most: int, places: NDArray[np.int64] | None = None
) -> list[Tensor]:
    """Log-probabilities without gradients, a row for each sample.

    Args:
        policy: whose.
        batch: the samples.
        most: tokens in one forward pass.
        places: of which samples; None for all.
    """
    rows: list[Tensor] = []
    wanted = np.arange(len(batch.samples)) if places is None else places
    with torch.no_grad():
        for part in parts(wanted, batch.tokens, most):
            logp, mask = logprobs(policy, batch, part)
            rows += torch.split(logp[mask], batch.lengths[part].tolist())
    return rows


def of_usable(groups: Sequence[Group], values: Sequence[ValueT]) -> list[ValueT]:
    """Values of the groups that are learned from: out of those of all groups, or as they are."""
    if len(values) != len(groups):
        return list(values)
    both = zip(groups, values, strict=True)
    return [value for group, value in both if group.comparable]


def padded(rows: Sequence[Tensor], part: NDArray[np.int64], like: Tensor) -> Tensor:
    """(B, T) of some of the rows, 0 beyond their ends, where and of the type that ``like`` is."""
    return pad_sequence([rows[i] for i in part], batch_first=True).to(like)


def group_metrics(
    groups: Sequence[Group],
    usable: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    outcome: str,
) -> dict[str, float]:
    """How much of a batch can teach anything; lost rollouts say nothing.

    Args:
        groups: all of them.
        usable: those that are learned from.
        advantages: of each of these.
        outcome: attribute of a trajectory that is learned from.
    """
    arrived = [[t for t in group.trajectories if not t.end_reason.lost] for group in usable]
    outcomes = [[float(getattr(t, outcome)) for t in group] for group in arrived]
    flat = [value for values in outcomes for value in values]
    solved = [t.success for group in arrived for t in group]
    idle = sum(not teaches(values) for values in advantages)
    return {
        "groups": float(len(groups)),
        "broken_groups": float(len(groups) - len(usable)),
        "degenerate_share": idle / len(usable) if usable else 0.0,
        "reward": sum(flat) / len(flat) if flat else 0.0,
        "success": sum(solved) / len(solved) if solved else 0.0,
    }


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Size and spread of what is learned from."""
    advantage, recorded = torch.cat([*batch.advantage]), torch.cat([*batch.recorded])
    return {
        "decisions": float(batch.n_decisions),
        "samples": float(len(batch.samples)),
        "tokens_sampled": float(len(recorded)),
        "tokens": float(batch.tokens.sum()),
        "advantage_std": float(advantage.std(correction=0)),
        "entropy": -float(recorded.mean()),
    }
