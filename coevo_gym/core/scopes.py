"""Thread-local, named scopes for recording and counting model queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Scopes:
    """The stack of named scopes that the current thread has entered.

    Scopes are local to a thread: entering a scope does not affect other threads.

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
        """Full name of this thread's current scope, or "" outside any scope."""
        path: str = getattr(self._here, "path", "")
        return path

    def on_begin(self, tell: Callable[[str], None]) -> None:
        """Register a function to call with a scope's full name whenever the scope is entered."""
        self._told.append(tell)

    @contextmanager
    def __call__(self, name: str) -> Iterator[str]:
        """Enter a nested scope called ``name`` and yield its full name."""
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
