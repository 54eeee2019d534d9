"""The actions that a scoring policy can choose from: page clicks and suggested searches."""

from __future__ import annotations

import re
from functools import lru_cache

from coevo_gym.core.trajectory import View

MAX_SEARCHES = 6
MAX_CHARS = 2_000
"""Maximum number of characters of an instruction that are used to derive searches.

The time to find a price grows with the square of this number.
"""
_EDGES = " ,.;:!?"
_BRACKETS = re.compile(r"[\[\]\s]+")
_CLAUSE = re.compile(r"[,;:.!?]\s+|\s+(?:with|and|that|for|in|under|below)\s+")
# A number is read whole from its first digit on, or long numbers would take minutes.
_PRICE = re.compile(
    r"[^,.;]*?(?<!\d)\d++(?:\.\d++)?\s*+(?:dollars|\$)|[^,.;]*?\$\s*+\d++(?:\.\d++)?"
)


def choices(view: View) -> tuple[str, ...]:
    """Return the actions worth taking on the current page, in page order.

    These are searches derived from the instruction on the search page, and clicks on other pages.
    """
    if view.info.get("webshop.page") == "search":
        return tuple(f"search[{query}]" for query in search_queries(view.instruction))
    return tuple(view.info["admissible"])


@lru_cache(maxsize=8192)
def search_queries(instruction: str) -> tuple[str, ...]:
    """Derive search queries from an instruction, such as its full text and its longest clauses.

    Only the first ``MAX_CHARS`` characters are read.

    Example:
        >>> search_queries("Find a red mug with a lid, for less than 20 dollars.")[:2]
        ('find a red mug with a lid, for less than 20 dollars.', 'find a red mug with a lid')
    """
    text = _BRACKETS.sub(" ", instruction[:MAX_CHARS]).strip().lower()
    without_price = _PRICE.sub("", text).strip(_EDGES)
    clauses = [clause.strip(_EDGES) for clause in _CLAUSE.split(without_price)]
    head = without_price.partition(",")[0]
    pieces = [text, without_price, head, *sorted(clauses, key=len, reverse=True)]
    return tuple(dict.fromkeys(piece for piece in pieces if piece))[:MAX_SEARCHES]
