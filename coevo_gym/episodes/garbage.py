"""Less frequent garbage collection while many episodes run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 1_000
"""Collections of the middle generation between two full collections; Python's default is 10."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Make full garbage collections rare inside this context.

    Envs and policies keep hundreds of thousands of objects and drop many others, which are freed at
    once because they are not in a cycle. Python counts the dropped objects as if they still
    existed, and therefore scans all others again and again. On ALFWorld this took a third of a
    run's time (CPython 3.11, see ``bench/full_collections.py``). Young cycles are collected as
    before.
    """
    first, second, third = gc.get_threshold()
    gc.set_threshold(first, second, max(third, SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(first, second, third)
