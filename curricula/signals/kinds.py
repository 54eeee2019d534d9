"""The kinds of signals and contexts that come with this package; importing it registers them."""

from __future__ import annotations

from typing import Literal

from coevo_gym.core.kinds import Kind, register_kind

SignalName = Literal["forgetting", "boundary", "rare"]

FORGETTING: SignalName = "forgetting"
BOUNDARY: SignalName = "boundary"
RARE: SignalName = "rare"
ALL_SIGNALS: tuple[SignalName, ...] = (FORGETTING, BOUNDARY, RARE)
"""The weaknesses that CoEvolve reads from rollouts (arXiv 2604.15840, section 3.1)."""

UNGUIDED = "unguided"
"""Of a context without any guidance."""
BLIND = "blind"
"""Of a task that was practised, whatever happened on it."""
TARGET = "target"
"""Of a context that is to find a task of certain tags, whatever was practised."""
UNPROVEN = "unproven"
"""Of a task that came without proof, for an experiment."""
COVERAGE, LEARNABLE, PROGRESS = "coverage", "learnable", "progress"
"""Of tasks that other rules than signals have chosen."""

register_kind(Kind(FORGETTING, "forgetting", "#3f6fa8", "#7aa7e0"))
register_kind(Kind(BOUNDARY, "boundary", "#c98a00", "#e0b040"))
register_kind(Kind(RARE, "rare", "#a03070", "#dd7fb2"))
register_kind(Kind(COVERAGE, "coverage", "#2f7d4f", "#6fce97", fires=False))
register_kind(Kind(LEARNABLE, "learnable", "#6b5bb0", "#a99bf0", fires=False))
register_kind(Kind(PROGRESS, "progress", "#a05a2c", "#e0a070", fires=False))
register_kind(Kind(TARGET, "target", "#1f7a7a", "#5fc0c0", fires=False))
register_kind(Kind(UNGUIDED, "unguided", fires=False))
register_kind(Kind(UNPROVEN, "unproven", fires=False))
register_kind(Kind(BLIND, "blind", fires=False))
