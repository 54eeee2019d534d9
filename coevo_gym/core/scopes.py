"""Which piece of work each thread is at, for all that records or counts by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Scopes:
    """Names of pieces of work, one inside the other.

    A thread's work has names of its own: what one enters, no other is in.

    Example:
        >>> scopes = Scopes()
        >>> with scopes("round-3"), scopes("explore-0"):
        ...     scopes.path
        'round-3/explore-0'
        >>> with scopes("round-3"), scopes("round-3/explore-0"):
        ...     scopes.path
        'round-3/explore-0'
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._told: list[Callable[[str], None]] = []

    @property
    def path(self) -> str:
        """The whole name of where this thread is; "" outside of all."""
        path: str = getattr(self._here, "path", "")
        return path

    def on_begin(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with each whole name that is entered, before the work begins."""
        self._told.append(tell)

    @contextmanager
    def __call__(self, name: str) -> Iterator[str]:
        """A scope in which :attr:`path` ends with ``name``; gives the path."""
        before = self.path
        inside = f"{before}/"
        path = name if not before or name.startswith(inside) else inside + name
        for tell in self._told:
            tell(path)
        self._here.path = path
        try:
            yield path
        finally:
            self._here.path = before
