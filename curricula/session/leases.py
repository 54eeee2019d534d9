"""Leases: time limits after which a ticket's place is issued again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coevo_gym.core.errors import ConfigError

Clock = Callable[[], float]
"""A function that returns monotonic time in seconds (``time.monotonic``)."""


class Leases:
    """Leases by name, all with the same duration.

    Args:
        seconds: duration; None for leases that never expire.
        clock: returns the time; required unless ``seconds`` is None.

    Raises:
        ConfigError: if ``seconds`` is not positive, or is given without a clock.
    """

    def __init__(self, seconds: float | None, clock: Clock | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"lease_s must be positive, actual: {seconds!r}")
        if seconds is not None and clock is None:
            raise ConfigError(
                "Leases need a clock. Pass clock=time.monotonic together with lease_s."
            )
        self._seconds, self._clock = seconds, clock
        self._until: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Start a lease now, or renew it."""
        if self._seconds is not None and self._clock is not None:
            self._until.pop(name, None)  # keep the leases ordered by expiry
            self._until[name] = self._clock() + self._seconds

    def end(self, name: str) -> None:
        """End a lease, if it exists."""
        self._until.pop(name, None)

    def clear(self) -> None:
        """End all leases."""
        self._until.clear()

    def left(self) -> dict[str, float]:
        """Return the remaining seconds of each lease, the first to expire in front."""
        now = self._clock() if self._clock is not None else 0.0
        return {name: until - now for name, until in self._until.items()}

    def restore(self, left: Mapping[str, float]) -> None:
        """Replace all leases by those from :meth:`left`."""
        now = self._clock() if self._clock is not None else 0.0
        self._until = {name: now + seconds for name, seconds in left.items()}

    def take_lapsed(self) -> list[str]:
        """End the expired leases and return their names, oldest first."""
        if not self._until or self._clock is None:
            return []
        now, lapsed = self._clock(), []
        for name, until in self._until.items():
            if until > now:
                break
            lapsed.append(name)
        for name in lapsed:
            del self._until[name]
        return lapsed
