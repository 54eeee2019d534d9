"""Truncated importance sampling: what a sampler whose weights are not the learner's is worth.

A token that was sampled with other weights, because it is older than the latest update, or because
the sampler's numerics differ, is not what the learner would have said. The surrogate of each such
position is weighted by

    w = min(π_old / π_sampler, cap)

where π_old is the learner as it is when an update begins, and π_sampler what the sampler wrote
down. The ratio that is clipped is π / π_old: so the trust region lies around the newest weights,
however old a sample is. w carries no gradient; the KL term has none.

Sources: the truncation at ``cap`` is that of IMPALA's V-trace (arXiv 1802.01561), position by
position; to have π_old and π_sampler apart in a clipped surrogate is the decoupled objective of
Hilton et al. (arXiv 2110.00641), used with stale rollouts of language models by AReaL (arXiv
2505.24298).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.seams import TrainablePolicy
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.update.batch import Batch, evaluated, padded
from coevo_gym.trainers.update.loss import bounded_exp, k3

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"Learning needs PyTorch. {extra_advice('train')}.") from error


def truncated_weights(
    old_logp: Tensor, sampler_logp: Tensor, mask: Tensor, cap: float | None
) -> tuple[Tensor | None, dict[str, float]]:
    """Weights for a sampler that is not the old policy, and how far it is from it.

    Args:
        old_logp: (B, T) log-probabilities under the learner when its update began.
        sampler_logp: (B, T) those that the sampler wrote down.
        mask: (B, T) bool, True where a position was sampled by the policy.
        cap: the most that a weight may be; None for no weights.

    Returns:
        (B, T) weights, or None; and sums over the sampled positions: of the weights
        (``importance``), of those at the cap (``importance_capped_share``), and of k3 estimates of
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


def of_older_weights(batch: Batch, version: int) -> Tensor:
    """(D,) bool: which samples hold what older weights sampled.

    There are none where no group may be stale: who learns on-policy asks for no correction.

    Args:
        batch: the samples.
        version: version of the policy that is about to be trained.
    """
    if not batch.off_policy:
        return torch.zeros(len(batch.samples), dtype=torch.bool)
    return batch.versions < version


def renewed(
    policy: TrainablePolicy, batch: Batch, which: Tensor, microbatch_tokens: int
) -> Sequence[Tensor]:
    """Old log-probabilities, a row for each sample: of some the policy's own, else the recorded.

    Args:
        policy: the learner's, as it is when an update begins.
        batch: the samples.
        which: (D,) bool, of which the policy's own.
        microbatch_tokens: most tokens of a forward pass.
    """
    if not which.any():
        return batch.recorded
    if which.all():
        return evaluated(policy, batch, microbatch_tokens)
    rows = list(batch.recorded)
    places = np.flatnonzero(which.numpy())
    for place, row in zip(places, evaluated(policy, batch, microbatch_tokens, places), strict=True):
        rows[place] = row.to(rows[place])
    return rows


def shares(batch: Batch, stale: Tensor) -> dict[str, float]:
    """How much of what is learned from older weights have sampled; nothing if that is never so."""
    if not batch.off_policy:
        return {}
    return {"stale_share": float(batch.lengths[stale].sum() / batch.lengths.sum())}


def importance_of(
    batch: Batch,
    part: NDArray[np.int64],
    old_logp: Tensor,
    mask: Tensor,
    *,
    corrected: Tensor,
    cap: float | None,
) -> tuple[Tensor | None, dict[str, float]]:
    """:func:`truncated_weights` of some rows of a batch; 1 where there is nothing to correct.

    Args:
        batch: the samples.
        part: which rows.
        old_logp: (B, T) of these rows.
        mask: (B, T) bool, their sampled positions.
        corrected: (D,) bool, which samples are corrected for their sampler. One from which cues
            were stripped never is: nobody sampled from its prompt, so there is no ratio.
        cap: the most that a weight may be; None for no weights.
    """
    recorded = padded(batch.recorded, part, old_logp)
    apart = (corrected & ~batch.stripped)[part]
    if not apart.all():
        recorded = torch.where(apart.unsqueeze(1).to(mask), recorded, old_logp)
    return truncated_weights(old_logp, recorded, mask, cap)
