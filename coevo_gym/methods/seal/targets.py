"""The value of practising a task again after its last failure."""

from __future__ import annotations

from coevo_gym.methods.seal.utilities import CLIP, FAILURES, Clip, clipped
from coevo_gym.methods.seal.window import WindowLabel


def task_target(
    label: str,
    seen: WindowLabel,
    *,
    min_samples: int = 8,
    alpha: float = 1.0,
    confident: int = 32,
    clip: Clip = CLIP,
) -> float | None:
    """Return the target of a task's weight: clip(1 + alpha (1 - r) min(1, n / confident)).

    Args:
        label: the task's last label.
        seen: number of turns n and mean success r of that label over all tasks.
        min_samples: minimum turns with the label.
        alpha: maximum distance of the target from 1.
        confident: count from which the numbers count in full.
        clip: lowest and highest target.

    Returns:
        The target; None if the label stands for no failure, or was too rare.

    Source: the code of SEAL; its paper does not have it.
    """
    if label not in FAILURES or seen.turns < min_samples:
        return None
    sure = min(1.0, seen.turns / confident)
    return clipped(1.0 + alpha * (1.0 - seen.mean) * sure, clip)
