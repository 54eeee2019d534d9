"""Attacks in which model-written code fakes success on a task or reads hidden data."""

from __future__ import annotations

from coevo_gym.sandbox.attacks import Payload
from tests.appworld.attacks import breaking, changing, forgeries, reading
from tests.appworld.attacks.seen import EngineObservations

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    *changing.PAYLOADS,
    *reading.PAYLOADS,
    *breaking.PAYLOADS,
    *forgeries.PAYLOADS,
)
