"""What a run tells of how far it has come; the command line shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told of phases, one after the other."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase.

        Args:
            name: what is being done.
            total: how much there is of it.
            done: how much of it was done before.
        """
        ...

    def update(self, done: int, **facts: str) -> None:
        """Say how far the phase has come, with facts such as ``success="31 %"``."""
        ...

    def say(self, text: str) -> None:
        """Tell a line that is to stay."""
        ...
