"""Texts that nobody should trust."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from coevo_gym.testing.contract import HOSTILE_ACTIONS

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
"""Text of all of Unicode: controls, private use, lone surrogates."""

CONTROLS = (
    "\0",
    "\a",
    "\b",
    "\x1b[2J",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e",
    "\ufeff",
    "\u200d",
    "\r",
)
ODD = (
    *HOSTILE_ACTIONS.values(),
    *CONTROLS,
    *("🙂" * 30_000, "\u0301" * 9_000, "\ud800" * 300, "\n" * 50_000, " " * 30_000, "\\" * 20_001),
    *("(" * 8_000, "[" * 8_000 + "]" * 8_000, "{" * 8_000, '{"a":' * 4_000 + "1" + "}" * 4_000),
    *("9" * 6_000, "-" * 6_000 + "1", "1e999", "NaN", "-Infinity", "0x" + "f" * 6_000, "1e-999"),
    *("%s%n%x", "{0.__class__}", "{{7*7}}", "${x}", "$(id)", "`id`", "../../etc/passwd", "None"),
    *("<script>", "&amp;&#0;", "'; DROP TABLE texts; --", "<think>", "</think>", "<|im_end|>"),
)

NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**400), 2**63, -(2**63) - 1, 1e308, -0.0, float("nan")])
)
JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | ANY_TEXT | st.sampled_from(ODD[:12]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
"""What JSON can hold, and the numbers that Python reads from it beyond."""


def nest_lists(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def changed_texts(draw: st.DrawFn, text: str) -> str:
    """A text of which something is lost, doubled, put in, swapped or written otherwise."""
    end = len(text)
    i, j = sorted((draw(st.integers(0, end)), draw(st.integers(0, end))))
    put = draw(st.sampled_from(ODD) | ANY_TEXT)
    return draw(
        st.sampled_from(
            (
                text[:i] + text[j:],
                text[:i],
                text[i:],
                text[:j] + text[i:],
                text[:i] + put + text[i:],
                text[:i] + put + text[j:],
                text[:i] + text[i:j][::-1] + text[j:],
                text.swapcase(),
                text + " " + text,
                f" {text}\n",
            )
        )
    )


def mostly(right: SearchStrategy[str]) -> SearchStrategy[str]:
    """What is right, changed, changed twice, or nothing of the kind."""
    wrong = right.flatmap(changed_texts)
    return st.one_of(
        right, wrong, wrong, wrong.flatmap(changed_texts), ANY_TEXT, st.sampled_from(ODD)
    )
