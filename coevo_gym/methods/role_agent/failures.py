"""How common each failure mode is, and which tasks are drawn more often for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def counts_after(
    counts: Mapping[str, float], modes: Iterable[str], *, half_life_steps: float = 20.0
) -> dict[str, float]:
    """Return the decayed counts of failure modes after one more step of the learner.

    Args:
        counts: those before.
        modes: mode of each failure in the step.
        half_life_steps: steps after which a failure counts half.

    Returns:
        n_m of each mode ever seen: the sum of 0.5 ** (age / half_life_steps) over its failures.

    Example:
        >>> counts_after({"loop": 1.0}, ["loop", "grab"], half_life_steps=1.0)
        {'loop': 1.5, 'grab': 1.0}

    Source: ours; Role-Agent (arXiv 2606.10917, 3.3) prints no number.
    """
    factor = 0.5 ** (1.0 / half_life_steps)
    found = {mode: count * factor for mode, count in counts.items()}
    for mode in modes:
        found[mode] = found.get(mode, 0.0) + 1.0
    return found


def mode_weights(
    buckets: Mapping[str, Iterable[str]], counts: Mapping[str, float], *, weight: float = 1.0
) -> dict[str, float]:
    """Return the drawing weights of the tasks that have failed; all others weigh 1.

    A task weighs 1, plus ``weight`` times the share of failures whose mode it has shown.

    Args:
        buckets: ids of the tasks that have shown each mode.
        counts: decayed count of each mode.
        weight: lambda, at least 0.

    Example:
        >>> mode_weights({"loop": ["a"], "grab": ["a", "b"]}, {"loop": 3.0, "grab": 1.0})
        {'a': 2.0, 'b': 1.25}

    Source: ours, for Role-Agent (arXiv 2606.10917), 3.3.
    """
    total = sum(counts.values())
    found: dict[str, float] = {}
    for mode, tasks in buckets.items():
        for task in tasks:
            share = counts.get(mode, 0.0) / total if total else 0.0
            found[task] = found.get(task, 1.0) + weight * share
    return found
