"""A strict parser for request parameters. It rejects invalid values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import parse_qsl

from coevo_gym.view.refusals import BadRequest

PER_PAGE, MAX_PER_PAGE = 50, 500
_MAX_PARAMETERS = 60
_MAX_CHARACTERS = 1000
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_PAGING = ("page", "per_page", "sort")


class PageRequest(NamedTuple):
    """The requested page of a list, as a page number and a page size.

    Attributes:
        page: page number, from 1.
        per_page: maximum number of rows on a page.
    """

    page: int
    per_page: int

    @property
    def first(self) -> int:
        """Return the zero-based index of the page's first row in the list."""
        return (self.page - 1) * self.per_page


class Query:
    """Request parameters: a list of values for each name. Empty values are dropped.

    Args:
        pairs: names and values, in order.

    Raises:
        BadRequest: if there are too many parameters, or one is too long.

    Example:
        >>> query = Query([("arm", "a"), ("arm", "b"), ("page", "2")])
        >>> query.all("arm"), query.page(total=400).first
        (('a', 'b'), 50)
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        parameters: dict[str, list[str]] = {}
        for number, (name, value) in enumerate(pairs):
            if number >= _MAX_PARAMETERS or len(value) > _MAX_CHARACTERS:
                raise BadRequest(
                    f"A request may have at most {_MAX_PARAMETERS} parameters with at most "
                    f"{_MAX_CHARACTERS:,} characters each."
                )
            if value:
                parameters.setdefault(name, []).append(value)
        self._found = {name: tuple(values) for name, values in parameters.items()}

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parse a query string that has no leading question mark."""
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
        except ValueError:
            pairs = [("", "")] * (_MAX_PARAMETERS + 1)
        return cls(pairs)

    def without(self, *names: str) -> Query:
        """Return the parameters except those with the given names."""
        pairs = [
            (name, value)
            for name, values in self._found.items()
            if name not in names
            for value in values
        ]
        return Query(pairs)

    def check_known(self, known: Collection[str], *, paged: bool = False) -> None:
        """Reject unknown parameters.

        Raises:
            BadRequest: if there is an unknown parameter.
        """
        names = [*known, *(_PAGING if paged else ())]
        for name in self._found:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                meant = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."
                raise BadRequest(f"Unknown parameter {name[:60]!r}. {meant}")

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a parameter."""
        return self._found.get(name, ())

    def one(self, name: str) -> str | None:
        """Return the value of a parameter that may be given only once.

        Raises:
            BadRequest: if the parameter is given more than once.
        """
        values = self.all(name)
        if len(values) > 1:
            raise BadRequest(f"The parameter {name!r} was given {len(values)} times. Pass it once.")
        return values[0] if values else None

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return all values of a parameter as numbers.

        Raises:
            BadRequest: if a value is not a number.
        """
        return tuple(_parse_number(name, value) for value in self.all(name))

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """Parse the value of a parameter as a bounded integer.

        Raises:
            BadRequest: if the value is not such a number.
        """
        text = self.one(name)
        number = float(default) if text is None else _parse_number(name, text)
        if not (number.is_integer() and least <= number <= most):
            raise BadRequest(
                f"{name} must be a whole number from {least} to {most:,}, got {text!r}."
            )
        return int(number)

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return all values of a parameter as booleans.

        Raises:
            BadRequest: if a value is neither ``true`` nor ``false``.
        """
        values = self.all(name)
        if wrong := [value for value in values if value not in ("true", "false")]:
            raise BadRequest(f"{name} must be 'true' or 'false', got {wrong[0][:60]!r}.")
        return tuple(value == "true" for value in values)

    def words(self, name: str = "q") -> tuple[str, ...]:
        """Return the words in a parameter's values, in lower case."""
        return words_of(" ".join(self.all(name)))

    def page(self, total: int) -> PageRequest:
        """Return the requested page.

        Args:
            total: number of rows of the whole list.

        Raises:
            BadRequest: if a number is invalid.
        """
        per_page = self.integer("per_page", PER_PAGE, least=1, most=MAX_PER_PAGE)
        page = self.integer("page", 1, least=1, most=10**9)
        return PageRequest(min(page, count_pages(total, per_page)), per_page)

    def sort_order(self, known: Sequence[str]) -> tuple[str, bool]:
        """Return the sort key and whether the order is descending. The default is the first key.

        Raises:
            BadRequest: if the sort name is unknown.
        """
        key = self.one("sort") or known[0]
        name = key.removeprefix("-")
        if name not in known:
            raise BadRequest(f"Unknown sort key {key[:60]!r}. Choose one of: {', '.join(known)}.")
        return name, key.startswith("-")


def count_pages(total: int, per_page: int) -> int:
    """Return the number of pages needed to show a list (1 if the list is empty)."""
    return max(1, math.ceil(total / per_page))


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct search terms in a string, in lower case."""
    return tuple(dict.fromkeys(to_lower_case(text).split()))


def to_lower_case(text: str) -> str:
    """Convert a string to lower case exactly as the pages' JavaScript does."""
    return text.lower()


def task_search_text(name: str, id: str, instruction: str) -> str:
    """Return the text about a task in which a search looks for words."""
    return to_lower_case(f"{name} {id} {instruction}")


def _parse_number(name: str, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f"{name} must be a number, got {text[:60]!r}.")
    return float(text)
