"""Telling a person that something takes long, while it does.

What is told are records of one logger, :data:`logger`. They are warnings, so that a program that
has not set up logging shows them, too. ``logging.getLogger("coevo_gym.waiting").disabled = True``
silences them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("coevo_gym.waiting")

_looking = ContextVar("looking", default=False)


@contextmanager
def only_looking() -> Iterator[None]:
    """A scope in which nothing is made that takes long: whoever needs it says what is missing."""
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


def is_only_looking() -> bool:
    """Whether this runs in a scope of :func:`only_looking`."""
    return _looking.get()


class Patience:
    """Tells how far something has come, if it takes long.

    Args:
        what: what is being done.
        first_s: seconds until something is told.
        every_s: seconds between two things that are told.
        clock: seconds that have passed since some moment.

    Example:
        >>> patience = Patience("the first round", first_s=60)
        >>> patience.tell("3 of 40 tasks")  # a minute has not passed yet
    """

    def __init__(
        self,
        what: str,
        *,
        first_s: float = 3.0,
        every_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._every_s, self._clock = what, every_s, clock
        self._begun = clock()
        self._next = self._begun + first_s

    def tell(self, how_far: str) -> None:
        """Tell how far it has come, unless something was told a moment ago."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._every_s
            logger.warning("%s: %s (%.0f s) ...", self._what, how_far, now - self._begun)
