"""Guesses from repetitions in a token sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.agents.lm.repetition import N_MATCHED, Repetition


def guess_by_search(ids: list[int], most: int) -> list[int]:
    """Look for the latest earlier occurrence of the last tokens, place by place."""
    last = ids[-N_MATCHED:]
    for place in range(len(ids) - 1, N_MATCHED - 1, -1):
        if ids[place - N_MATCHED : place] == last:
            return ids[place : place + most]
    return []


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(1, 5)), st.integers(-1, 6))
def test_a_guess_is_what_followed_the_latest_occurrence_of_the_last_tokens(
    ids: list[int], sizes: list[int], most: int
) -> None:
    text, rest = Repetition(), ids
    for size in sizes:
        text.extend(rest[:size])
        rest = rest[size:]
    text.extend(rest)
    assert len(text) == len(ids)
    assert text.guess(most) == (guess_by_search(ids, most) if most > 0 else [])
