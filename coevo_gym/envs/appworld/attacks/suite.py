"""All attempts to cheat in AppWorld, for ``coevo doctor --escape-suite``."""

from __future__ import annotations

from coevo_gym.envs.appworld.attacks import breaking, changing, forgeries, reading
from coevo_gym.envs.appworld.attacks.seen import EngineObservations
from coevo_gym.envs.appworld.attacks.setup import cheat_setup
from coevo_gym.envs.appworld.builtin import builtin_root
from coevo_gym.sandbox.attacks import Payload, Suite

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    *changing.PAYLOADS,
    *reading.PAYLOADS,
    *breaking.PAYLOADS,
    *forgeries.PAYLOADS,
)


def escape_suite() -> Suite:
    """Return attempts to cheat in AppWorld's built-in world."""
    return Suite("appworld", PAYLOADS, lambda level: cheat_setup(builtin_root(), level))
