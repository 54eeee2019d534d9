"""All attempts to cheat in AppWorld, for ``coevo doctor --escape-suite``."""

from __future__ import annotations

from coevo_gym.envs.appworld.builtin import builtin_root
from coevo_gym.envs.appworld.escapes import (
    breaking,
    changing,
    forgeries,
    grade,
    log,
    processes,
    reading,
)
from coevo_gym.envs.appworld.escapes.seen import EngineObservations
from coevo_gym.envs.appworld.escapes.setup import cheat_setup
from coevo_gym.escapes import Payload, Suite

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    *changing.PAYLOADS,
    *reading.PAYLOADS,
    *grade.PAYLOADS,
    *breaking.PAYLOADS,
    *forgeries.PAYLOADS,
    *log.PAYLOADS,
    *processes.PAYLOADS,
)


def escape_suite() -> Suite:
    """Return attempts to cheat in AppWorld's built-in world."""
    return Suite("appworld", PAYLOADS, lambda level: cheat_setup(builtin_root(), level))
