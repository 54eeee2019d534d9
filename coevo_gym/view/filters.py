"""Filters for the viewer's lists, used by queries and by exported pages.

A filter is an operation on a field of a row. Exported pages apply the same table in a browser
(``static/viewer/exported.js``); tests check that the Python, JavaScript and SQL filters agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from coevo_gym.view.query import Query, count_pages
from coevo_gym.view.rows import ListRow

Op = Literal["is", "has", "from", "to", "more", "words"]
"""Filter operations. ``is``: equals; ``has``: an array contains the value (or ``any`` or ``none``);
``from``, ``to``: inclusive bounds; ``more``: true if a number is above 0; ``words``: a text
contains all words."""

RowT = TypeVar("RowT", bound=ListRow)


class Filter(NamedTuple):
    """A condition on a row, set by a query parameter.

    Attributes:
        op: the operation.
        field: the row's field; dots access nested objects, and ``_`` marks a field that responses
            do not contain.
        flag: True if the parameter's values are ``true`` and ``false``.
    """

    op: Op
    field: str
    flag: bool = False


class Listing(NamedTuple):
    """A list that can be filtered and sorted.

    Attributes:
        filters: filters by parameter name.
        sorts: fields by sort name; the first is the default, which is the rows' own order.
    """

    filters: Mapping[str, Filter]
    sorts: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the listing as JSON for exported pages."""
        return {
            "filters": {name: [rule.op, rule.field] for name, rule in self.filters.items()},
            "sorts": dict(self.sorts),
        }


TRAJECTORIES = Listing(
    {
        "arm": Filter("is", "arm"),
        "step": Filter("is", "step"),
        "step_from": Filter("from", "step"),
        "step_to": Filter("to", "step"),
        "group": Filter("is", "group"),
        "task": Filter("is", "task.id"),
        "success": Filter("is", "success", flag=True),
        "signal": Filter("has", "signals"),
        "end": Filter("is", "end_reason"),
        "failure": Filter("is", "failure"),
        "score_from": Filter("from", "score"),
        "score_to": Filter("to", "score"),
        "steps_from": Filter("from", "steps"),
        "steps_to": Filter("to", "steps"),
        "version": Filter("is", "policy_version"),
        "error": Filter("more", "errors", flag=True),
        "advice": Filter("has", "advice"),
        "q": Filter("words", "_words"),
    },
    {
        "step": "_place",
        "score": "score",
        "steps": "steps",
        "success": "success",
        "advantage": "advantage",
    },
)
GROUPS = Listing(
    {
        "step": Filter("is", "step"),
        "step_from": Filter("from", "step"),
        "step_to": Filter("to", "step"),
        "task": Filter("is", "task.id"),
        "outcome": Filter("is", "_outcome"),
        "signal": Filter("has", "signals"),
        "stored": Filter("is", "stored", flag=True),
        "q": Filter("words", "_words"),
    },
    {"step": "_place"},
)
TASKS = Listing(
    {
        "arm": Filter("has", "arms"),
        "origin": Filter("is", "origin"),
        "round": Filter("is", "round"),
        "signal": Filter("is", "signal"),
        "practised": Filter("more", "episodes", flag=True),
        "success_from": Filter("from", "success"),
        "success_to": Filter("to", "success"),
        "q": Filter("words", "_words"),
    },
    {
        "found": "_place",
        "success": "success",
        "episodes": "episodes",
        "children": "children",
        "name": "name",
    },
)
DRAFTS = Listing(
    {
        "arm": Filter("has", "arms"),
        "round": Filter("is", "round"),
        "gate": Filter("is", "gate"),
        "accepted": Filter("is", "accepted", flag=True),
        "signal": Filter("is", "signal"),
        "step_from": Filter("from", "step"),
        "step_to": Filter("to", "step"),
        "q": Filter("words", "_words"),
    },
    {"found": "_place", "gate": "gate", "task": "instruction", "signal": "signal"},
)
EPISODES = Listing(
    {
        "success": Filter("is", "success", flag=True),
        "end": Filter("is", "end_reason"),
        "failure": Filter("is", "failure"),
        "type": Filter("has", "tags"),
        "sample": Filter("is", "sample"),
        "task": Filter("is", "task"),
        "q": Filter("words", "_words"),
    },
    {"name": "name", "score": "score", "steps": "steps", "success": "success"},
)
LISTS: Mapping[str, Listing] = {
    "trajectories": TRAJECTORIES,
    "groups": GROUPS,
    "tasks": TASKS,
    "drafts": DRAFTS,
    "episodes": EPISODES,
}
"""All lists, by the last part of their path."""


class Selected(NamedTuple, Generic[RowT]):
    """A page of a filtered list.

    Attributes:
        rows: rows on the page.
        matching: all rows that match.
        paging: ``total``, ``page``, ``pages`` and ``per_page`` of the response.
    """

    rows: Sequence[RowT]
    matching: Sequence[RowT]
    paging: dict[str, int]


def select_page(rows: Sequence[RowT], listing: Listing, query: Query) -> Selected[RowT]:
    """Filter, sort and paginate rows in memory.

    Raises:
        BadRequest: if a parameter is invalid or unknown.
    """
    query.check_known(listing.filters, paged=True)
    tests = [
        test for name, rule in listing.filters.items() if (test := _make_test(rule, name, query))
    ]
    matches = [row for row in rows if all(test(row) for test in tests)]
    name, largest_first = query.sort_order(tuple(listing.sorts))
    field = listing.sorts[name]
    if field != "_place":
        known = [row for row in matches if value_of(row, field) is not None]
        unknown = [row for row in matches if value_of(row, field) is None]
        known.sort(key=lambda row: value_of(row, field), reverse=largest_first)
        matches = known + unknown
    elif largest_first:
        matches.reverse()
    place = query.page(len(matches))
    paging = paging_of(len(matches), place.page, place.per_page)
    return Selected(matches[place.first : place.first + place.per_page], matches, paging)


def paging_of(total: int, page: int, per_page: int) -> dict[str, int]:
    """Return a response's pagination fields."""
    pages = count_pages(total, per_page)
    return {"total": total, "page": page, "pages": pages, "per_page": per_page}


def value_of(row: ListRow, field: str) -> Any:
    """Return the value of the given field in a row; see :class:`Filter`."""
    return attrgetter(field.removeprefix("_"))(row)


def _make_test(rule: Filter, name: str, query: Query) -> Callable[[ListRow], bool] | None:
    """Return a function that tests rows against a parameter, or None if the parameter is unset."""
    if not query.all(name):
        return None
    wanted: Sequence[Any] = query.all(name)
    if rule.op == "words":
        wanted = query.words(name)
    elif rule.op in ("from", "to"):
        wanted = query.numbers(name)
    elif rule.flag:
        wanted = query.flags(name)
    matches = _MATCHES[rule.op]
    return lambda row: matches(value_of(row, rule.field), wanted)


def _matches_choice(values: Sequence[str], wanted: str) -> bool:
    if wanted == "any":
        return bool(values)
    return not values if wanted == "none" else wanted in values


def _satisfies_bound(value: float | None, bounds: Sequence[float], sign: int) -> bool:
    return value is not None and any(sign * value >= sign * bound for bound in bounds)


_MATCHES: Mapping[Op, Callable[[Any, Sequence[Any]], bool]] = {
    "is": lambda value, wanted: value in wanted or str(value) in wanted,
    "has": lambda values, wanted: any(_matches_choice(values, one) for one in wanted),
    "from": lambda value, bounds: _satisfies_bound(value, bounds, 1),
    "to": lambda value, bounds: _satisfies_bound(value, bounds, -1),
    "more": lambda value, flags: value is not None and (value > 0) in flags,
    "words": lambda text, words: all(word in text for word in words),
}
"""Conditions by operation: a row's value must match at least one of the parameter's values."""
