"""How much a task is worth practising again after what failed in it last."""

from __future__ import annotations

from coevo_gym.methods.seal.utilities import CLIP, FAILURES, Clip, clipped
from coevo_gym.methods.seal.window import Seen


def task_target(
    label: str,
    seen: Seen,
    *,
    min_samples: int = 8,
    alpha: float = 1.0,
    confident: int = 32,
    clip: Clip = CLIP,
) -> float | None:
    """Target of a task's weight: clip(1 + alpha (1 - r) min(1, n / confident)).

    Args:
        label: the task's last label.
        seen: turns n and mean success r of that label over all tasks.
        min_samples: least turns with it.
        alpha: how far it may be from 1.
        confident: count from which the numbers are taken in full.
        clip: lowest and highest target.

    Returns:
        The target; None if the label tells of no failure, or was seen too seldom.

    Source: the code of SEAL; its paper does not have it.
    """
    if label not in FAILURES or seen.turns < min_samples:
        return None
    sure = min(1.0, seen.turns / confident)
    return clipped(1.0 + alpha * (1.0 - seen.mean) * sure, clip)
