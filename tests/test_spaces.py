from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.spaces import UnicodeText, clean_text

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(ANY_TEXT, st.integers(64, 200))
def test_cleaned_text_is_a_member(text: str, limit: int) -> None:
    cleaned = clean_text(text * 5, limit)
    assert UnicodeText(limit).contains(cleaned)
    cleaned.encode()


@given(st.text(st.characters(codec="utf-8")))
def test_clean_text_keeps_what_is_clean(text: str) -> None:
    assert clean_text(text, 100_000) == text


def test_cut_text_says_how_much_is_missing() -> None:
    cut = clean_text("x" * 1_000_000, 100)
    assert len(cut) <= 100
    assert cut.endswith("[999932 characters cut]")


@given(st.integers(0, 1000))
def test_samples_are_members(seed: int) -> None:
    space = UnicodeText(64, seed=seed)
    assert space.contains(space.sample())
    assert space.from_jsonable(space.to_jsonable(["a", "é"])) == ["a", "é"]


def test_not_members() -> None:
    space = UnicodeText(64)
    assert not any(map(space.contains, (1, None, b"a", "x" * 65, "\ud800", ["a"])))


def test_bad_limit_is_named() -> None:
    with pytest.raises(ValueError, match="max_length >= 64, actual: 3"):
        UnicodeText(3)


def test_equality_and_repr() -> None:
    assert UnicodeText(64) == UnicodeText(64) != UnicodeText(65)
    assert repr(UnicodeText(64)) == "UnicodeText(64)"
