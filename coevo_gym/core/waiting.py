"""Progress messages for slow operations, with estimates of the remaining time.

The messages are logged to one logger, :data:`logger`, as warnings, so that they also appear in a
program that has not configured logging. To silence them, set
``logging.getLogger("coevo_gym.waiting").disabled = True``.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger("coevo_gym.waiting")

HowFar = Callable[[str, int, int], None]
"""A callback that receives a description of the operation, the amount done and the total."""

Acted = Callable[[int, int], None]
"""A callback that receives the env steps that agents have just taken, and the tokens that models
read and wrote for these steps.
"""

_STRETCH = 20
"""Number of progress updates for measuring a rate: enough to smooth jitter, yet react quickly."""

_looking = ContextVar("looking", default=False)
_follower: ContextVar[HowFar | None] = ContextVar("follower", default=None)
_watcher: ContextVar[Acted | None] = ContextVar("watcher", default=None)


@contextmanager
def _set_temporarily(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def forbid_setup() -> AbstractContextManager[None]:
    """Create a context manager in which slow setup work, such as installing, raises an error."""
    return _set_temporarily(_looking, True)


def is_setup_forbidden() -> bool:
    """Return True if the caller is inside a :func:`forbid_setup` context."""
    return _looking.get()


def send_progress_to(follower: HowFar) -> AbstractContextManager[None]:
    """Create a context manager that sends the progress of slow operations to ``follower``."""
    return _set_temporarily(_follower, follower)


def report_progress(what: str, done: int, total: int) -> None:
    """Report progress to the callback set by :func:`send_progress_to`, if any. The call is cheap.

    ``what`` names the operation with its unit, such as ``"making the world (MB)"``.
    """
    if follower := _follower.get():
        follower(what, done, total)


def send_activity_to(watcher: Acted) -> AbstractContextManager[None]:
    """Create a context manager that reports env steps and tokens to ``watcher``."""
    return _set_temporarily(_watcher, watcher)


def report_activity(steps: int, tokens: int) -> None:
    """Report the env steps and tokens used since the last call. Calls may occur mid-episode.

    Call it with two zeros just before the operation starts, so that it can be timed.
    """
    if watcher := _watcher.get():
        watcher(steps, tokens)


class Patience:
    """A rate-limited progress logger that is silent for the first ``first_s`` seconds.

    Example:
        >>> patience = Patience("the first round", first_s=60)
        >>> patience.log_progress("3 of 40 tasks")  # a minute has not passed yet
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

    def log_progress(self, how_far: str) -> None:
        """Log progress, unless the last message was logged too recently."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._every_s
            logger.warning("%s: %s (%.0f s) ...", self._what, how_far, now - self._begun)


class Pace:
    """An estimator of the remaining time, based on the recent rate of progress.

    ``done`` is the amount done so far, of ``total``.

    Example:
        >>> now = 0.0
        >>> pace = Pace(10, clock=lambda: now)
        >>> now = 4.0
        >>> pace.update(2)
        >>> pace.rate, pace.left_s()
        (0.5, 16.0)
    """

    def __init__(
        self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done = total, done
        self._clock, self._begun = clock, clock()
        self._marks = deque([(self._begun, done)], maxlen=_STRETCH + 1)

    def update(self, done: int) -> None:
        """Record the amount of work done so far."""
        if done != self.done:
            self.done = done
            self._marks.append((self._clock(), done))

    @property
    def elapsed_s(self) -> float:
        """The number of seconds elapsed so far."""
        return self._clock() - self._begun

    @property
    def rate(self) -> float | None:
        """The amount of work done per second, or None before any progress."""
        (first, before), (last, now) = self._marks[0], self._marks[-1]
        return (now - before) / (last - first) if last > first and now > before else None

    @property
    def estimated_total_s(self) -> float | None:
        """The estimated total time in seconds, or None before any progress."""
        return None if self.rate is None else self.total / self.rate

    def left_s(self) -> float | None:
        """Estimate the remaining time in seconds. Return None before any progress."""
        if self.done >= self.total:
            return 0.0
        if self.rate is None:
            return None
        since = self._clock() - self._marks[-1][0]
        return max(0.0, (self.total - self.done) / self.rate - since)


def format_duration(seconds: float) -> str:
    """Format a duration as text, such as ``2 h 05 min``.

    Example:
        >>> [format_duration(seconds) for seconds in (41.3, 245, 7500, 200_000)]
        ['41 s', '4 min', '2 h 05 min', '2 d 8 h']
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
