"""All attacks on AppWorld, for ``coevo doctor --attack-suite``."""

from __future__ import annotations

from coevo_gym.envs.appworld.attacks import breaking, changing, forgeries, reading
from coevo_gym.envs.appworld.attacks.seen import EngineObservations
from coevo_gym.envs.appworld.attacks.setup import attack_setup
from coevo_gym.envs.appworld.builtin import builtin_root
from coevo_gym.sandbox.attacks import Payload, Suite

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    *changing.PAYLOADS,
    *reading.PAYLOADS,
    *breaking.PAYLOADS,
    *forgeries.PAYLOADS,
)


def attack_suite() -> Suite:
    """Return the attack suite for AppWorld's built-in world."""
    return Suite("appworld", PAYLOADS, lambda level: attack_setup(builtin_root(), level))
