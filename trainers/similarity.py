"""Functions that measure the similarity of texts and group similar texts into states.

Source: Role-Agent (arXiv 2606.10917), Eq. 4 and 4.1: twice the longest common subsequence divided
by the total length; texts with a similarity above 0.9 count as the same state. Comparing later
texts only with the first text of each state is our choice; the paper does not specify this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from rapidfuzz.distance import LCSseq

Measure = Literal["lcs", "difflib", "words"]
"""Similarity measures. ``lcs``: number of characters in the longest common subsequence.
``difflib``: number of characters in the matching blocks found by Python's difflib without its junk
heuristic, which is slow and not symmetric. ``words``: number of words in the longest common
subsequence, which separates texts better, as unrelated texts share half of their letters."""

MAX_CHARACTERS = 2_000
"""Number of characters to compare; text beyond this length is ignored."""


def likeness(a: str, b: str, measure: Measure = "lcs") -> float:
    """Return the similarity of two texts, from 0 (nothing in common) to 1 (identical).

    Only the first 2,000 characters of each text are compared.

    Example:
        >>> likeness("abcd", "bcde")
        0.75
        >>> likeness("open the fridge 1", "open the drawer 1", "words")
        0.75
    """
    return _unit_similarity(_units(a, measure), _units(b, measure), measure)


class Merge(NamedTuple):
    """Two different texts that map to the same state. ``leader`` was seen first."""

    leader: str
    text: str


class StateGroups(NamedTuple):
    """The result of grouping texts into states.

    Attributes:
        numbers: state number of each text; states are numbered from 0 in order of appearance.
        merged: pairs of different texts that map to the same state, each listed once.
    """

    numbers: list[int]
    merged: list[Merge]


def group_states(
    texts: Sequence[str], *, threshold: float = 0.9, measure: Measure = "lcs"
) -> StateGroups:
    """Group texts into states by similarity.

    The first text of a state is its leader. Each later text joins the first leader that is similar
    enough, or else becomes the leader of a new state. Equal texts always share a state. With a
    threshold of 1 or more, only equal texts share a state.

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
        place = next(
            (n for n, one in enumerate(leaders) if one.matches(mine, threshold, measure)), None
        )
        if place is None:
            leaders.append(mine)
        else:
            merged.append(Merge(leaders[place].text, text))
        known[text] = len(leaders) - 1 if place is None else place
    return StateGroups([known[text] for text in texts], merged)


class _Leader:
    """The first text of a state, with a count of each word or character for fast comparisons."""

    def __init__(self, text: str, units: Sequence[Hashable]) -> None:
        self.text, self.units = text, units
        self.counts = Counter(units)

    def matches(self, other: _Leader, threshold: float, measure: Measure) -> bool:
        total = len(self.units) + len(other.units)
        # A common subsequence is no longer than the shorter text or than the shared units.
        if 2 * min(len(self.units), len(other.units)) <= threshold * total:
            return False
        if 2 * (self.counts & other.counts).total() <= threshold * total:
            return False
        return _unit_similarity(self.units, other.units, measure) > threshold


def _units(text: str, measure: Measure) -> Sequence[Hashable]:
    cut = text[:MAX_CHARACTERS]
    return cut.split() if measure == "words" else cut


def _unit_similarity(a: Sequence[Hashable], b: Sequence[Hashable], measure: Measure) -> float:
    if measure == "difflib":
        return SequenceMatcher(None, a, b, autojunk=False).ratio()
    total = len(a) + len(b)
    return 2.0 * LCSseq.similarity(a, b) / total if total else 1.0
