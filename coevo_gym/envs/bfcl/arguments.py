"""Candidate values for a parameter, scored by how well they fit.

Values come from what the agent has seen: the user's messages, results of earlier calls, the agent's
own earlier arguments, and values listed in a parameter's description. A value fits a parameter if
the words near it (or its key in a result) match the parameter's name, and if its kind matches what
the parameter expects: a file name, a date, a quoted sentence.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.signatures import Function, Parameter
from coevo_gym.envs.bfcl.values import (
    OPENING,
    Value,
    kind_of,
    normalise_numbers,
    to_hashable,
    values_in_results,
    values_in_text,
    words_of,
)

MAX_PER_PARAMETER = 16
"""Maximum number of values tried for one parameter."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}
_AT_HAND = -2.0
"""Cost at or below which a value probably fits, so that an optional parameter is probably set."""


class CandidateValues(NamedTuple):
    """Values that could be arguments of the next call.

    Attributes:
        request: the user's last message, in lower case.
        values: by type, (distance, value) pairs; values seen recently have a lower distance and
            come first.
    """

    request: str
    values: Mapping[type, list[tuple[float, Value]]]


def collect_values(
    offered: Sequence[Function], request: str, seen: Sequence[str], actions: Sequence[str]
) -> CandidateValues:
    """Collect the candidate values without duplicates."""
    results = [text for text in reversed(seen) if text.startswith(OPENING)]
    messages = [text for text in reversed(seen) if not text.startswith(OPENING) and text != request]
    sources = [
        (0.0, values_in_text(request)),
        *((min(0.25 + 0.25 * i, 2.0), values_in_results(text)) for i, text in enumerate(results)),
        *((0.5, _values_in_calls(text, offered)) for text in reversed(actions)),
        *((min(1.0 + i, 3.0), values_in_text(text)) for i, text in enumerate(messages)),
    ]
    entries: dict[str, tuple[float, Value]] = {}
    for away, values in sources:
        for value in values:
            key = repr(value.value)
            if key not in entries:
                entries[key] = (away, value)
            elif not value.near <= entries[key][1].near:
                nearest, known = entries[key]
                entries[key] = (nearest, known._replace(near=known.near | value.near))
    by_type: dict[type, list[tuple[float, Value]]] = {str: [], int: [], float: [], list: []}
    for away, value in entries.values():
        by_type[type(value.value)].append((away, value))
    return CandidateValues(request.lower(), by_type)


def _values_in_calls(message: str, offered: Sequence[Function]) -> Iterator[Value]:
    """Yield each argument of a message's calls, with its parameter's name split into words."""
    known = {function.name: function for function in offered}
    for call in parse_message(message):
        if not isinstance(call, Call) or call.name not in known:
            continue
        function = known[call.name]
        names = [parameter.name for parameter in function.parameters]
        arguments = {**dict(zip(names, call.positional, strict=False)), **call.arguments}
        for name, value in arguments.items():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                kind = kind_of(value) if isinstance(value, str) else "number"
                yield Value(value, kind, words_of(name) | {f"{name}="})


def rank_values(parameter: Parameter, pool: CandidateValues) -> list[tuple[float, Any]]:
    """Return (cost, value) pairs for a parameter, best value first.

    The value None means that the parameter is left out.
    """
    first: dict[str, tuple[float, Any]] = {}
    for cost, value in sorted(_rate_values(parameter, pool), key=lambda item: item[0]):
        if parameter.required or to_hashable(value) != parameter.default:
            first.setdefault(repr(normalise_numbers(value)), (cost, value))
        if len(first) == MAX_PER_PARAMETER:
            break
    rated = list(first.values())
    costs = [(cost - rated[0][0] + 0.2 * i, value) for i, (cost, value) in enumerate(rated)]
    if parameter.required:
        return costs
    at_hand = bool(rated) and rated[0][0] <= _AT_HAND
    left_out = (1.0 if at_hand else 0.0, None)
    put_in = [(cost if at_hand else cost + 0.5, value) for cost, value in costs]
    return sorted([left_out, *put_in], key=lambda item: item[0])


def _rate_values(parameter: Parameter, pool: CandidateValues) -> Iterator[tuple[float, Any]]:
    """Yield (cost, value) pairs for a parameter; values that fit better cost less."""
    if parameter.type == "boolean":
        yield from ((0.0, flag) for flag in (True, False))
    elif parameter.type == "array":
        yield from _rate_arrays(parameter, pool)
    elif parameter.type == "object":
        for field in parameter.fields:
            yield from ((cost, {field.name: value}) for cost, value in rank_values(field, pool)[:3])
    elif parameter.listed:
        yield from _rate_allowed(parameter, pool)
    else:
        yield from _rate_scalars(parameter, _TYPES[parameter.type], pool)


def _rate_allowed(parameter: Parameter, pool: CandidateValues) -> Iterator[tuple[float, Any]]:
    """Yield (cost, value) pairs for the allowed values; values in the request cost less."""
    for item in parameter.listed:
        place = pool.request.find(item.lower())
        yield place / len(pool.request) if place >= 0 else 1.0, item


def _rate_scalars(
    parameter: Parameter, types: Sequence[type], pool: CandidateValues
) -> Iterator[tuple[float, Any]]:
    """Yield (cost, value) pairs for a parameter whose values are strings or numbers."""
    for away, value in chain.from_iterable(pool.values[kind] for kind in types):
        score = _fit_score(parameter, value)
        if score > 0 or value.kind != "word":
            yield away - score, value.value
        if parameter.mark and value.kind in ("quoted", "name") and " " not in value.value:
            yield away, parameter.mark + value.value
    yield from ((0.0, hint) for hint in parameter.hints if type(hint) in types)


def _rate_arrays(parameter: Parameter, pool: CandidateValues) -> Iterator[tuple[float, Any]]:
    """Yield (cost, list) pairs for an array parameter; lists that fit better cost less."""
    types = _TYPES[parameter.items]
    if parameter.listed:
        yield _AT_HAND, list(parameter.listed)
        yield from ((cost, [value]) for cost, value in _rate_allowed(parameter, pool))
        return
    mentions = [v for kind in types for away, v in pool.values[kind] if away == 0.0]
    for kind in ("tag", "user", "quoted", "symbol", "name", "number"):
        alike = [value.value for value in mentions if value.kind == kind]
        if len(alike) > 1:
            yield -2.5 if kind in parameter.kinds else 0.0, alike
    for away, value in pool.values[list]:
        if all(type(item) in types for item in value.value):
            yield away, value.value
    yield from ((cost, [value]) for cost, value in _rate_scalars(parameter, types, pool))


def _fit_score(parameter: Parameter, value: Value) -> float:
    """Score how well a value fits a parameter, based on its kind and the words near it."""
    if value.kind in parameter.kinds:
        score = 2.0 - 0.5 * parameter.kinds.index(value.kind)
    else:
        score = -1.0 if value.kind == "word" else 0.0
    near = value.near
    if parameter.cues.isdisjoint(near):
        return score
    in_name = len(parameter.words & near) / len(parameter.words)
    own_key = near <= parameter.cues
    again = f"{parameter.name}=" in near
    in_about = min(len(parameter.about & near), 2)
    return score + 2.0 * in_name + (in_name == 1.0) + own_key + 2.0 * again + 0.5 * in_about


def rank_combinations(columns: Sequence[Sequence[tuple[float, Any]]]) -> Iterator[list[Any]]:
    """Yield lists of one value per parameter, best overall fit first. No list repeats a string."""
    if not all(columns):
        return
    heap = [(sum(column[0][0] for column in columns), (0,) * len(columns))]
    known = {heap[0][1]}
    while heap:
        _, places = heapq.heappop(heap)
        row = [column[place][1] for column, place in zip(columns, places, strict=True)]
        texts = [value for value in row if type(value) is str]
        if len(set(texts)) == len(texts):
            yield row
        for i, place in enumerate(places):
            after = (*places[:i], place + 1, *places[i + 1 :])
            if place + 1 < len(columns[i]) and after not in known:
                known.add(after)
                cost = sum(column[p][0] for column, p in zip(columns, after, strict=True))
                heapq.heappush(heap, (cost, after))
