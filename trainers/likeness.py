"""How alike two texts are, and which texts stand for one state.

Source: Role-Agent (arXiv 2606.10917), Eq. 4 and 4.1: twice the longest common subsequence over both
lengths, and states that are alike by more than 0.9. That only the first text of a state is
compared with later ones is our choice; theirs is not told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from rapidfuzz.distance import LCSseq

Measure = Literal["lcs", "difflib", "words"]
"""What two texts have in common: ``lcs``: the characters of their longest common subsequence.
``difflib``: those of the blocks that Python's difflib finds without its junk heuristic; slow, and
not symmetric. ``words``: the words of the longest common subsequence; the sharper scale, because
unrelated texts share half of their letters in order."""

MAX_CHARACTERS = 2_000
"""What follows in a text is not compared."""


def likeness(a: str, b: str, measure: Measure = "lcs") -> float:
    """How alike two texts are, from 0 for nothing in common to 1 for equal ones.

    Args:
        a: a text; its first 2,000 characters count.
        b: another.
        measure: what is counted.

    Example:
        >>> likeness("abcd", "bcde")
        0.75
        >>> likeness("open the fridge 1", "open the drawer 1", "words")
        0.75
    """
    return _alike(_units(a, measure), _units(b, measure), measure)


class Merge(NamedTuple):
    """Two different texts that stand for one state; ``text`` came later."""

    leader: str
    text: str


class StateGroups(NamedTuple):
    """Which texts are one state.

    Attributes:
        numbers: the state of each text; states are counted from 0 as they appear.
        merged: the different texts that were taken for one state, each once.
    """

    numbers: list[int]
    merged: list[Merge]


def group_states(
    texts: Sequence[str], *, threshold: float = 0.9, measure: Measure = "lcs"
) -> StateGroups:
    """Take texts that are alike by more than a threshold for one state.

    The first text of a state leads it: each later one joins the first leader that it is alike
    enough to, or leads a new state. Equal texts are one state, whatever the threshold.

    Args:
        texts: in order.
        threshold: likeness above which two texts are one state; from 1 on only equal ones are.
        measure: see :data:`Measure`.

    Example:
        >>> group_states(["at desk 1", "at shelf 2", "at desk 1"]).numbers
        [0, 1, 0]
    """
    known: dict[str, int] = {}
    leaders: list[_Leader] = []
    merged: list[Merge] = []
    for text in texts:
        if text in known:
            continue
        mine = _Leader(text, _units(text, measure))
        found = next(
            (n for n, one in enumerate(leaders) if one.matches(mine, threshold, measure)), None
        )
        if found is None:
            leaders.append(mine)
        else:
            merged.append(Merge(leaders[found].text, text))
        known[text] = len(leaders) - 1 if found is None else found
    return StateGroups([known[text] for text in texts], merged)


class _Leader:
    """A text with what tells quickly that another is too different."""

    def __init__(self, text: str, units: Sequence[Hashable]) -> None:
        self.text, self.units = text, units
        self.counts = Counter(units)

    def matches(self, other: _Leader, threshold: float, measure: Measure) -> bool:
        total = len(self.units) + len(other.units)
        # No common subsequence is longer than the shorter text, or than the units both have.
        if 2 * min(len(self.units), len(other.units)) <= threshold * total:
            return False
        if 2 * (self.counts & other.counts).total() <= threshold * total:
            return False
        return _alike(self.units, other.units, measure) > threshold


def _units(text: str, measure: Measure) -> Sequence[Hashable]:
    cut = text[:MAX_CHARACTERS]
    return cut.split() if measure == "words" else cut


def _alike(a: Sequence[Hashable], b: Sequence[Hashable], measure: Measure) -> float:
    if measure == "difflib":
        return SequenceMatcher(None, a, b, autojunk=False).ratio()
    total = len(a) + len(b)
    return 2.0 * LCSseq.similarity(a, b) / total if total else 1.0
