"""The built-in kinds of signals and contexts, registered on import."""

from __future__ import annotations

from typing import Literal

from coevo_gym.core.kinds import Kind, register_kind

SignalName = Literal["forgetting", "boundary", "rare"]

FORGETTING: SignalName = "forgetting"
BOUNDARY: SignalName = "boundary"
RARE: SignalName = "rare"
ALL_SIGNALS: tuple[SignalName, ...] = (FORGETTING, BOUNDARY, RARE)
"""Weaknesses that CoEvolve detects in rollouts (arXiv 2604.15840, section 3.1)."""

UNGUIDED = "unguided"
"""Kind of contexts without guidance."""
BLIND = "blind"
"""Kind of contexts from practised tasks, regardless of their outcomes."""
TARGET = "target"
"""Kind of contexts that ask for a task with certain tags."""
UNPROVEN = "unproven"
"""Kind of tasks without proof, for experiments."""
COVERAGE, LEARNABLE, PROGRESS = "coverage", "learnable", "progress"
"""Kinds of contexts chosen by rules other than signals."""

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
