"""Documents that are nearly right: JSON, TOML and templates, with something wrong in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.texts import ANY_TEXT, JSON, ODD, changed_texts, nest_lists

DEEP = (
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1" + "}" * 900,
    "x = " + "[" * 5_000 + "]" * 5_000,
    "x = " + "{a=" * 5_000 + "1" + "}" * 5_000,
    ".".join("a" * 5_000) + " = 1",
    "x = " + "9" * 5_000,
    '{"a": ' + "9" * 5_000 + "}",
    '{"a": NaN, "a": Infinity, "b": -1e999}',
    "{# name = " + "[" * 5_000 + " #}",
    "{{ " + "(" * 3_000 + ")" * 3_000 + " }}",
    "{% if x %}" * 3_000,
)
WRONG: SearchStrategy[Any] = st.one_of(
    JSON,
    st.builds(nest_lists, st.sampled_from([1, 150, 300])),
    st.builds(dict),
    st.builds(list),
    st.sampled_from([10**400, "x" * 100_000, True, -1]),
)


def texts(*right: str) -> SearchStrategy[str]:
    """A right text, one with a few changes, or one of another kind."""
    known = st.sampled_from(right)
    wrong = known.flatmap(changed_texts)
    odd = st.sampled_from((*ODD, *DEEP)) | ANY_TEXT
    return st.one_of(
        known, wrong, wrong.flatmap(changed_texts), odd, st.tuples(odd, known).map("".join)
    )


def files(*right: str) -> SearchStrategy[bytes]:
    """The same as bytes, of which some are not UTF-8."""
    text = texts(*right).map(lambda string: string.encode("utf-8", "surrogatepass"))
    torn = st.tuples(text, st.binary(max_size=4), st.integers(0, 200))
    return text | torn.map(lambda parts: parts[0][: parts[2]] + parts[1] + parts[0][parts[2] :])


@st.composite
def objects(draw: st.DrawFn, *right: Any) -> Any:
    """A right JSON value in which one or two places hold something else, or are gone."""
    value = json.loads(json.dumps(draw(st.sampled_from(right))))
    for _ in range(draw(st.integers(0, 2))):
        places = list(_places(value))
        if not places:
            break
        container, key = draw(st.sampled_from(places))
        how = draw(st.integers(0, 3))
        if how == 0:
            del container[key]
        elif how == 1 and isinstance(container, dict):
            container[draw(ANY_TEXT)] = draw(WRONG)
        else:
            container[key] = draw(WRONG)
    return value


def lines(*right: Any) -> SearchStrategy[bytes]:
    """Lines of JSON, some of which are wrong."""
    good: Sequence[str] = [json.dumps(value) for value in right]
    wrong = objects(*right).map(json.dumps).map(str.encode)
    return st.lists(wrong | files(*good), max_size=3).map(b"\n".join)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) of a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    places = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            places += _places(value[key])
    return places
