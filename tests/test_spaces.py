from __future__ import annotations

import copy
import multiprocessing

import pytest
from gymnasium.spaces import Dict
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.spaces import UnicodeText, clean_text

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(ANY_TEXT, st.integers(64, 200))
def test_cleaned_text_is_a_member_of_the_space(text: str, limit: int) -> None:
    cleaned = clean_text(text * 5, limit)
    assert UnicodeText(limit).contains(cleaned)
    cleaned.encode()


@given(st.text(st.characters(codec="utf-8")))
def test_clean_text_returns_valid_text_unchanged(text: str) -> None:
    assert clean_text(text, 100_000) == text


def test_cut_text_states_how_many_characters_are_missing() -> None:
    cut = clean_text("x" * 1_000_000, 100)
    assert len(cut) <= 100
    assert cut.endswith("[999932 characters cut]")


@given(st.integers(0, 1000))
def test_samples_are_members_of_the_space(seed: int) -> None:
    space = UnicodeText(64, seed=seed)
    assert space.contains(space.sample())
    assert space.from_jsonable(space.to_jsonable(["a", "é"])) == ["a", "é"]


def test_invalid_values_are_not_members_of_the_space() -> None:
    space = UnicodeText(64)
    assert not any(map(space.contains, (1, None, b"a", "x" * 65, "\ud800", ["a"])))


def test_a_too_small_max_length_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length >= 64, got 3"):
        UnicodeText(3)


def test_equality_and_repr_depend_on_max_length() -> None:
    assert UnicodeText(64) == UnicodeText(64) != UnicodeText(65)
    assert repr(UnicodeText(64)) == "UnicodeText(64)"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=64), min_size=1, max_size=4))
def test_shared_memory_returns_the_text_written_last(texts: list[str]) -> None:
    space, n = UnicodeText(64), len(texts)
    memory = create_shared_memory(space, n, multiprocessing.get_context())
    shared = read_from_shared_memory(space, memory, n)
    assert copy.deepcopy(shared) == create_empty_array(space, n) == ("",) * n
    for values in (["🙂" * 64] * n, texts):
        for index, text in enumerate(values):
            write_to_shared_memory(space, index, text, memory)
        assert copy.deepcopy(shared) == tuple(values) == shared[:]
        assert copy.deepcopy(shared) in batch_space(space, n)


def test_shared_memory_stores_several_texts_of_a_dict_space() -> None:
    space = Dict({"obs": UnicodeText(64), "said": UnicodeText(128)})
    memory = create_shared_memory(space, 2, multiprocessing.get_context("spawn"))
    shared = read_from_shared_memory(space, memory, 2)
    seen = [{"obs": "a" * 64, "said": "b" * 128}, {"obs": "é", "said": ""}]
    for index, value in enumerate(seen):
        write_to_shared_memory(space, index, value, memory)
    assert copy.deepcopy(shared) == concatenate(space, seen, create_empty_array(space, 2))


@pytest.mark.parametrize("value", ["x" * 65, "\ud800", 3])
def test_a_value_outside_the_space_is_not_written_to_shared_memory(value: object) -> None:
    space = UnicodeText(64)
    memory = create_shared_memory(space, 2, multiprocessing.get_context())
    with pytest.raises(ValueError, match=r"does not belong to UnicodeText\(64\): "):
        write_to_shared_memory(space, 0, value, memory)
    assert read_from_shared_memory(space, memory, 2)[:] == ("", "")


def test_the_zero_array_is_the_empty_text() -> None:
    assert create_zero_array(UnicodeText(64)) == ""
    assert create_zero_array(Dict({"obs": UnicodeText(64)})) == {"obs": ""}
