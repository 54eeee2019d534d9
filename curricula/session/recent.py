"""What was answered lately, so that a call may be repeated."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")


class Recent(Generic[AnswerT]):
    """The latest answers by name; older ones are forgotten.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[str, AnswerT] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str) -> AnswerT | None:
        """The answer of this name; None if there is none, or no more."""
        return self._kept.get(name)

    def put(self, name: str, answer: AnswerT) -> None:
        """Keep an answer, and forget the oldest if there are too many."""
        self._kept.pop(name, None)
        self._kept[name] = answer
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    def items(self) -> list[tuple[str, AnswerT]]:
        """All that is kept, the oldest first."""
        return list(self._kept.items())

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
