"""A memory of recent answers, so that calls can be repeated."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")


class Recent(Generic[AnswerT]):
    """The most recent answers by name; older ones are discarded.

    Args:
        most: maximum number of answers to keep.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[str, AnswerT] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str) -> AnswerT | None:
        """Return the answer of this name; None if it is unknown or discarded."""
        return self._kept.get(name)

    def put(self, name: str, answer: AnswerT) -> None:
        """Store an answer, and discard the oldest if there are too many."""
        self._kept.pop(name, None)
        self._kept[name] = answer
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    def items(self) -> list[tuple[str, AnswerT]]:
        """Return all stored answers, oldest first."""
        return list(self._kept.items())

    def clear(self) -> None:
        """Discard all answers."""
        self._kept.clear()
