"""Queries of an index for many episodes: the filters of a list in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.view.filters import TRAJECTORIES, Filter, paging_of
from coevo_gym.view.index.index import Index
from coevo_gym.view.query import Query

_COLUMNS: Mapping[str, str] = {
    "arm": "t.arm",
    "step": "t.step",
    "group": "t.group_id",
    "task.id": "t.task_id",
    "success": "t.success",
    "signals": "t.kinds",
    "end_reason": "t.end_reason",
    "score": "t.score",
    "steps": "t.steps",
    "policy_version": "t.version",
    "errors": "t.errors",
    "advice": "t.advice",
    "advantage": "t.advantage",
    "_place": "t.number",
}
"""Columns by field, for filtering and sorting lists of episodes."""

FIELDS = (
    "arm", "step", "group_id", "position", "task_id", "version", "success", "score", "end_reason",
    "steps", "kinds", "errors", "advice", "advantage", "name", "instruction", "origin", "number",
)  # fmt: skip
"""Fields of a row, in the order of :data:`SELECTED`."""
SELECTED = (
    "SELECT t.arm, t.step, t.group_id, t.position, t.task_id, t.version, t.success, t.score, "
    "t.end_reason, t.steps, t.kinds, t.errors, t.advice, t.advantage, k.name, "
    "k.instruction, k.origin, t.number "
    "FROM trajectories AS t LEFT JOIN tasks AS k ON k.id = t.task_id "
)
_WORD = (
    "(t.task_id IN (SELECT id FROM tasks WHERE instr(text, ?)) "
    "OR instr(w.text, ?) OR instr(lower(t.arm || '.' || t.group_id || '.' || t.position), ?))"
)

Asked = dict[str, Any]


def find_trajectories(index: Index, query: Query) -> tuple[list[Asked], dict[str, int]]:
    """Return a page of the episodes that match a query's filters.

    Returns:
        The rows, with :data:`FIELDS`, and the response's ``total``, ``page``, ``pages`` and
        ``per_page``.

    Raises:
        BadRequest: if a parameter is invalid or unknown.
    """
    query.check_known(TRAJECTORIES.filters, paged=True)
    conditions, values = _where(query)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    words = "LEFT JOIN words AS w ON w.number = t.number " if query.words() else ""
    name, largest_first = query.sort(tuple(TRAJECTORIES.sorts))
    column = _COLUMNS[TRAJECTORIES.sorts[name]]
    order = f"ORDER BY {column} IS NULL, {column} {'DESC' if largest_first else 'ASC'}, t.number"
    matching = index.rows(
        f"SELECT t.number FROM trajectories AS t {words}{where}{order}",  # noqa: S608 (constants)
        *values,
    )
    place = query.page(len(matching))
    shown = [number for (number,) in matching[place.first : place.first + place.per_page]]
    marks = ", ".join("?" * len(shown))
    rows = index.rows(f"{SELECTED}WHERE t.number IN ({marks})", *shown)
    order_of = {number: at for at, number in enumerate(shown)}
    found = sorted(as_rows(rows), key=lambda row: order_of[row["number"]])
    return found, paging_of(len(matching), place.page, place.per_page)


def trajectories_where(index: Index, condition: str, *values: Any) -> list[Asked]:
    """Return the episodes that satisfy a condition, in the run's order."""
    return as_rows(index.rows(f"{SELECTED}WHERE {condition} ORDER BY t.number", *values))


def as_rows(rows: Sequence[Sequence[Any]]) -> list[Asked]:
    """Convert rows of :data:`SELECTED` to mappings by field name."""
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def between(text: str | None) -> tuple[str, ...]:
    """Return the names in a text in which each name is between two commas."""
    return tuple(name for name in (text or "").split(",") if name)


def _where(query: Query) -> tuple[list[str], list[Any]]:
    conditions, values = list[str](), list[Any]()
    for name, rule in TRAJECTORIES.filters.items():
        if not query.all(name):
            continue
        if rule.op == "words":
            for word in query.words(name):
                conditions.append(_WORD)
                values += [word, word, word]
            continue
        parts = list(_parts(rule, name, query))
        conditions.append(f"({' OR '.join(condition for condition, _ in parts)})")
        values += [value for _, given in parts for value in given]
    return conditions, values


def _parts(rule: Filter, name: str, query: Query) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield a condition for each value of a parameter; a row must satisfy one of them."""
    column = _COLUMNS[rule.field]
    match rule.op:
        case "from":
            yield from ((f"{column} >= ?", (value,)) for value in query.numbers(name))
        case "to":
            yield from ((f"{column} <= ?", (value,)) for value in query.numbers(name))
        case "more":
            for flag in query.flags(name):
                yield f"{column} {'>' if flag else '<='} 0", ()
        case "has":
            for kind in query.all(name):
                if kind in ("any", "none"):
                    yield f"{column} {'<>' if kind == 'any' else '='} ''", ()
                else:
                    yield f"instr({column}, ?)", (f",{kind},",)
        case _ if rule.flag:
            yield from ((f"{column} = ?", (int(flag),)) for flag in query.flags(name))
        case _:
            yield from ((f"CAST({column} AS TEXT) = ?", (value,)) for value in query.all(name))
