"""How often Python looks through everything for garbage while many episodes are played."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 1_000
"""Collections of the middle generation between two full ones; Python's own choice is 10."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """A scope in which Python seldom looks through all objects for cycles that nobody holds.

    Envs and policies keep hundreds of thousands of objects and let go of many, which are freed at
    once, without a cycle. Python counts these as if they were still there, and looks through all
    others again and again: on ALFWorld that took a third of a run's time (CPython 3.11, see
    ``bench/full_collections.py``). Young cycles are collected as before.
    """
    first, second, third = gc.get_threshold()
    gc.set_threshold(first, second, max(third, SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(first, second, third)
