"""The choice of the failures that an agent is told about next."""

from __future__ import annotations

from collections.abc import Collection

from coevo_gym.methods.seal.utilities import FAILURES
from coevo_gym.methods.seal.window import Window, WindowLabel


def cues_on(
    window: Window,
    on: Collection[str] = (),
    *,
    count: int = 8,
    prevalence: float = 0.1,
    keep: float | None = 0.05,
    reward: float = 0.6,
    top: int = 3,
) -> tuple[str, ...]:
    """Return the labels whose cues are on after a window, the most urgent first.

    A label comes on if it was seen often enough, is common among the failures, and its episodes
    do badly. It stays on as long as it was seen often enough and is not rare. The most urgent are
    those of the highest share x (1 - mean success).

    Args:
        window: the labels of the window.
        on: the labels whose cues are on now.
        count: minimum turns with a label.
        prevalence: minimum share of the failures to come on.
        keep: minimum share of the failures to stay on; None to apply ``prevalence`` each time.
        reward: mean success below which a label comes on.
        top: maximum number of cues that are on.

    Source: Eq. 15 with the thresholds of the authors' code; ``keep`` is ours.
    """
    failures = {label: window[label] for label in FAILURES if label in window}
    turns = sum(seen.turns for seen in failures.values())

    def urgency(label: str) -> float:
        return failures[label].turns / turns * (1.0 - failures[label].mean)

    def eligible(label: str, seen: WindowLabel) -> bool:
        share = seen.turns / turns if seen.turns >= max(count, 1) else 0.0
        stays = keep is not None and label in on and share >= keep
        return share > 0.0 and (stays or (share >= prevalence and seen.mean < reward))

    found = [label for label, seen in failures.items() if eligible(label, seen)]
    return tuple(sorted(found, key=urgency, reverse=True)[:top])  # ties keep the order of FAILURES
