from __future__ import annotations

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.trainers.similarity import (
    MAX_CHARACTERS,
    Measure,
    Merge,
    _Leader,
    _unit_similarity,
    group_states,
    likeness,
)

SENTENCE = "the cat sat on the mat "
ROTATED = "on the mat the cat sat " * 12
WORDS = st.lists(st.sampled_from(["a", "bb", "cat", "desk", "open", "1", "2"]), max_size=9).map(
    " ".join
)
MEASURES: tuple[Measure, ...] = ("lcs", "difflib", "words")


def by_table(a: str, b: str) -> int:
    """Length of the longest common subsequence, by the table that defines it."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@pytest.mark.parametrize(
    ("measure", "a", "b", "expected"),
    [
        ("lcs", "abcd", "bcde", 0.75),
        ("lcs", "tide", "diet", 0.5),
        ("lcs", "", "", 1.0),
        ("lcs", "", "a", 0.0),
        ("lcs", "open the fridge 1", "open the drawer 1", 0.7647058824),
        ("difflib", "tide", "diet", 0.25),
        ("difflib", "diet", "tide", 0.5),
        ("difflib", SENTENCE * 12, ROTATED, 0.9601449275),
        ("words", "open the fridge 1", "open the drawer 1", 0.75),
        ("words", "a b", "ab", 0.0),
        ("words", "3 on is drawer 3 open", "3 on 2 you 3 open", 0.6666666667),
    ],
)
def test_likeness_equals_hand_computed_values(
    measure: Measure, a: str, b: str, expected: float
) -> None:
    assert likeness(a, b, measure) == pytest.approx(expected, abs=1e-9)


@given(st.text("abc ", max_size=30), st.text("abc ", max_size=30))
def test_lcs_likeness_equals_the_longest_common_subsequence_by_definition(a: str, b: str) -> None:
    total = len(a) + len(b)
    assert likeness(a, b) == (2 * by_table(a, b) / total if total else 1.0)
    assert likeness(a, b) == likeness(b, a)


def test_characters_beyond_the_maximum_are_not_compared() -> None:
    assert likeness("a" * MAX_CHARACTERS + "b" * 999, "a" * MAX_CHARACTERS + "c" * 999) == 1.0


@pytest.mark.parametrize(
    ("texts", "threshold", "measure", "expected"),
    [
        (["at desk 1.", "at desk 2.", "a mug", "at desk 1."], 0.8, "lcs", [0, 0, 1, 0]),
        (["at desk 1.", "at desk 2.", "at desk 1."], 1.0, "lcs", [0, 1, 0]),
        (["2 mug you open drawer mug open is and", "2 mug you open drawer mug open 1 and"],
         0.9, "lcs", [0, 0]),
        (["2 mug you open drawer mug open is and", "2 mug you open drawer mug open 1 and"],
         0.9, "words", [0, 1]),
        ([], 0.9, "lcs", []),
    ],
)  # fmt: skip
def test_texts_above_the_threshold_share_a_state(
    texts: list[str], threshold: float, measure: Measure, expected: list[int]
) -> None:
    assert group_states(texts, threshold=threshold, measure=measure).numbers == expected


def test_a_text_joins_the_first_state_whose_first_text_is_similar() -> None:
    # Each is 0.8 alike to the one before, and 0.6 to the one before that.
    grouping = group_states(["aaaaa", "aaaab", "aaabb"], threshold=0.7)
    assert grouping.numbers == [0, 0, 1]
    assert grouping.merged == [Merge("aaaaa", "aaaab")]
    assert group_states(["aaaab", "aaabb", "aaaaa"], threshold=0.7).numbers == [0, 0, 0]


def test_a_likeness_equal_to_the_threshold_does_not_merge_states() -> None:
    assert likeness("abcdefghij", "abcdefghiX") == 0.9
    assert group_states(["abcdefghij", "abcdefghiX"], threshold=0.9).numbers == [0, 1]


@pytest.mark.parametrize("measure", MEASURES)
@given(a=WORDS, b=WORDS, threshold=st.sampled_from([0.3, 0.6, 0.9]))
def test_the_quick_bound_never_rejects_similar_texts(
    measure: Measure, a: str, b: str, threshold: float
) -> None:
    if a == b:
        return
    expected = likeness(a, b, measure) > threshold
    assert (
        group_states([a, b], threshold=threshold, measure=measure).numbers == [0, 0]
    ) is expected


def test_difflib_gets_the_first_text_of_a_state_as_its_first_argument() -> None:
    first, second = (_Leader(text, text) for text in ("tide", "diet"))
    assert SequenceMatcher(None, "tide", "diet", autojunk=False).ratio() == 0.25
    assert _unit_similarity(first.units, second.units, "difflib") == 0.25
    assert not first.matches(second, 0.3, "difflib")
    assert second.matches(first, 0.3, "difflib")
