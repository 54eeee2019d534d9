"""A limit on the work that one API call may cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import process_time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine


class Effort:
    """A limit that ends a call that keeps this process busy for too long, before its next query.

    Some APIs, such as copying a folder into itself, can be made to work for hours, during which the
    process ignores orders. The limit counts processor time, because it does not depend on the load
    of the machine and continues while the clock stands still.
    """

    def __init__(self) -> None:
        self._limit_s = self._until_s = inf
        event.listen(Engine, "before_cursor_execute", self._check)

    @contextmanager
    def limited(self, limit_s: float) -> Iterator[None]:
        """Limit this block to that many seconds of processor time."""
        self._limit_s, self._until_s = limit_s, process_time() + limit_s
        try:
            yield
        finally:
            self._until_s = inf

    def _check(self, *_: Any) -> None:
        if process_time() > self._until_s:
            raise Exception(f"The call was ended: it took more than {self._limit_s:g} seconds.")
