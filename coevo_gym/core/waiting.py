"""Telling a person that something takes long, while it does, and how long it still takes.

What is told are records of one logger, :data:`logger`. They are warnings, so that a program that
has not set up logging shows them, too. ``logging.getLogger("coevo_gym.waiting").disabled = True``
silences them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("coevo_gym.waiting")

HowFar = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is of it."""

Acted = Callable[[int, int], None]
"""Called with the env steps that agents have just taken, and the tokens that models read and wrote
for them."""

_STRETCH = 20
"""Changes that a rate is measured over: it follows work that gets slower, and is no jitter."""

_looking = ContextVar("looking", default=False)
_follower: ContextVar[HowFar | None] = ContextVar("follower", default=None)
_watcher: ContextVar[Acted | None] = ContextVar("watcher", default=None)


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


@contextmanager
def followed_by(follower: HowFar) -> Iterator[None]:
    """A scope in which somebody is told how far what takes long has come; see :func:`how_far`."""
    token = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(token)


def how_far(what: str, done: int, total: int) -> None:
    """Tell whoever follows, if anybody does; may be called as often as you like.

    Args:
        what: what is being done, with its unit: ``"making the world (MB)"``.
        done: how much of it is done.
        total: how much there is of it.
    """
    follower = _follower.get()
    if follower is not None:
        follower(what, done, total)


@contextmanager
def watched_by(watcher: Acted) -> Iterator[None]:
    """Context manager that calls ``watcher`` with whatever is passed to :func:`acted` inside it."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def acted(steps: int, tokens: int) -> None:
    """Report work of agents and models as it happens, long before an episode has ended.

    Call it with two zeros just before the work, so that the time it takes can be measured.

    Args:
        steps: env steps that agents have decided on since the last call.
        tokens: tokens that models read and wrote since then.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher(steps, tokens)


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


class Pace:
    """Estimates how long something still takes, from how fast the last stretch of it went.

    Args:
        total: how much there is of it.
        done: how much of it was done before.
        clock: seconds that have passed since some moment.

    Attributes:
        done: how much of it is done.

    Example:
        >>> now = 0.0
        >>> pace = Pace(10, clock=lambda: now)
        >>> now = 4.0
        >>> pace.reach(2)
        >>> pace.rate, pace.left_s()
        (0.5, 16.0)
    """

    def __init__(
        self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done = total, done
        self._clock, self._begun = clock, clock()
        self._marks = deque([(self._begun, done)], maxlen=_STRETCH + 1)

    def reach(self, done: int) -> None:
        """So much of it is done now."""
        if done != self.done:
            self.done = done
            self._marks.append((self._clock(), done))

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return self._clock() - self._begun

    @property
    def rate(self) -> float | None:
        """How much of it is done in a second; None before anything is."""
        (first, before), (last, now) = self._marks[0], self._marks[-1]
        return (now - before) / (last - first) if last > first and now > before else None

    @property
    def whole_s(self) -> float | None:
        """How long all of it takes, from nothing; None before anything is done."""
        return None if self.rate is None else self.total / self.rate

    def left_s(self) -> float | None:
        """Seconds that it still takes; None before anything is done."""
        if self.done >= self.total:
            return 0.0
        if self.rate is None:
            return None
        since = self._clock() - self._marks[-1][0]
        return max(0.0, (self.total - self.done) / self.rate - since)


def duration(seconds: float) -> str:
    """A stretch of time in words, such as ``2 h 05 min``.

    Example:
        >>> duration(41.3), duration(245), duration(7500), duration(200_000)
        ('41 s', '4 min', '2 h 05 min', '2 d 8 h')
    """
    minutes = seconds / 60
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes:.0f} min"
    hours, rest = divmod(round(minutes), 60)
    if hours < 48:
        return f"{hours} h {rest:02} min"
    days, hours = divmod(round(minutes / 60), 24)
    return f"{days} d {hours} h"
