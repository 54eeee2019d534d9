"""How long a ticket may be out before its place is given to somebody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coevo_gym.core.errors import ConfigError

Clock = Callable[[], float]
"""Seconds since some moment; it never goes back (``time.monotonic``)."""


class Leases:
    """Leases by name, all of one length.

    Args:
        seconds: how long; None for leases that never run out.
        clock: tells the time; needed where they do.

    Raises:
        ConfigError: if ``seconds`` is not positive, or comes without a clock.
    """

    def __init__(self, seconds: float | None, clock: Clock | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"lease_s must be positive, actual: {seconds!r}")
        if seconds is not None and clock is None:
            raise ConfigError("Leases need a clock. Pass clock=time.monotonic with lease_s.")
        self._seconds, self._clock = seconds, clock
        self._until: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Lease from now on; one that is held already begins anew."""
        if self._seconds is not None and self._clock is not None:
            self._until.pop(name, None)  # the first to run out stay in front
            self._until[name] = self._clock() + self._seconds

    def end(self, name: str) -> None:
        """Give a lease up; without one, nothing happens."""
        self._until.pop(name, None)

    def clear(self) -> None:
        """Give all up."""
        self._until.clear()

    def left(self) -> dict[str, float]:
        """Seconds that each lease has left, the first to run out in front."""
        now = self._clock() if self._clock is not None else 0.0
        return {name: until - now for name, until in self._until.items()}

    def restore(self, left: Mapping[str, float]) -> None:
        """Take up leases where :meth:`left` left them, in place of all others."""
        now = self._clock() if self._clock is not None else 0.0
        self._until = {name: now + seconds for name, seconds in left.items()}

    def take_lapsed(self) -> list[str]:
        """End the leases that have run out, the oldest first, and name them."""
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
