"""Truncated importance sampling for samplers whose weights differ from the learner's.

Tokens sampled with older weights, or with different numerics, do not follow the learner's
distribution. The surrogate of each such position is weighted by

    w = min(π_old / π_sampler, cap)

π_old is the learner at the start of an update; π_sampler is the distribution recorded by the
sampler. The clipped ratio is π / π_old, so the trust region is centred on the newest weights,
regardless of a sample's age. w has no gradient; the KL term is not weighted.

Sources: the truncation at ``cap`` follows IMPALA's V-trace (arXiv 1802.01561), applied to each
position. Separating π_old from π_sampler in a clipped surrogate is the decoupled objective of
Hilton et al. (arXiv 2110.00641), used with stale rollouts of language models by AReaL (arXiv
2505.24298).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coevo_gym.core.seams import TrainablePolicy
from coevo_gym.trainers.update.batch import Batch, detached_logprobs, pad_rows
from coevo_gym.trainers.update.loss import bounded_exp, k3


def truncated_weights(
    old_logp: Tensor, sampler_logp: Tensor, mask: Tensor, cap: float | None
) -> tuple[Tensor | None, dict[str, float]]:
    """Compute truncated importance weights, and metrics for the gap between sampler and learner.

    Args:
        old_logp: (B, T) log-probabilities under the learner at the start of its update.
        sampler_logp: (B, T) log-probabilities recorded by the sampler.
        mask: (B, T) bool, True for positions sampled by the policy.
        cap: upper bound on a weight; None for no weights.

    Returns:
        (B, T) weights or None, and sums over the sampled positions: the weights (``importance``),
        the number of weights at the cap (``importance_capped_share``) and the k3 estimates of
        KL(sampler, learner) (``sampler_kl``).
    """
    ratio = bounded_exp((old_logp - sampler_logp).masked_fill(~mask, 0.0))
    weight = ratio if cap is None else ratio.clamp(max=cap)
    sums = {
        "importance": float(weight[mask].sum()),
        "importance_capped_share": float((weight < ratio)[mask].sum()),
        "sampler_kl": float(k3(sampler_logp, old_logp)[mask].sum()),
    }
    return (None if cap is None else weight), sums


def stale_mask(batch: Batch, version: int) -> Tensor:
    """Return a (D,) bool mask of the samples that contain tokens from older policy versions.

    It is always False if groups cannot be stale, because on-policy training needs no correction.
    """
    if not batch.off_policy:
        return torch.zeros(len(batch.samples), dtype=torch.bool)
    return batch.versions < version


def recompute_logprobs(
    policy: TrainablePolicy, batch: Batch, which: Tensor, microbatch_tokens: int
) -> Sequence[Tensor]:
    """Return old log-probabilities, recomputed where the (D,) mask ``which`` is True."""
    if not which.any():
        return batch.recorded
    if which.all():
        return detached_logprobs(policy, batch, microbatch_tokens)
    rows = list(batch.recorded)
    places = np.flatnonzero(which.numpy())
    for place, row in zip(
        places, detached_logprobs(policy, batch, microbatch_tokens, places), strict=True
    ):
        rows[place] = row.to(rows[place])
    return rows


def sampler_divergence(batch: Batch, part: NDArray[np.int64], logp: Tensor, mask: Tensor) -> float:
    """Estimate how far the sampler is from the learner, before the learner's first step.

    Args:
        batch: samples.
        part: indices of the rows.
        logp: (B, T) the learner's log-probabilities of these rows, without gradients.
        mask: (B, T) bool, True for their sampled positions.

    Returns:
        Sum of the k3 estimates of KL(sampler, learner) over the sampled positions. Samples from
        which cues were stripped count as 0, because their prompt was never sampled from.
    """
    apart = ~batch.stripped[part].unsqueeze(1).to(mask) & mask
    return float(k3(pad_rows(batch.recorded, part, logp), logp)[apart].sum())


def importance_weights(
    batch: Batch,
    part: NDArray[np.int64],
    old_logp: Tensor,
    mask: Tensor,
    *,
    corrected: Tensor,
    cap: float | None,
) -> tuple[Tensor | None, dict[str, float]]:
    """Compute :func:`truncated_weights` for the given rows of a batch. Other samples get weight 1.

    Args:
        batch: samples.
        part: indices of the rows.
        old_logp: (B, T) old log-probabilities of these rows.
        mask: (B, T) bool, True for their sampled positions.
        corrected: (D,) bool, True for samples to correct for their sampler. Samples from which
            cues were stripped are never corrected: their prompt was never sampled from, so there is
            no ratio.
        cap: upper bound on a weight; None for no weights.
    """
    recorded = pad_rows(batch.recorded, part, old_logp)
    apart = (corrected & ~batch.stripped)[part]
    if not apart.all():
        recorded = torch.where(apart.unsqueeze(1).to(mask), recorded, old_logp)
    return truncated_weights(old_logp, recorded, mask, cap)
