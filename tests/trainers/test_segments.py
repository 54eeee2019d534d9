from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.trajectory import ChoiceDecision, Segment, TokenDecision, View
from coevo_gym.trainers.segments import n_sampled, n_tokens, recorded_logprobs, samples, segments

IDS = st.integers(0, 3)


def ids(low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(IDS, min_size=low, max_size=high).map(tuple)


@st.composite
def episodes(draw: st.DrawFn) -> list[TokenDecision]:
    """Decisions whose prompts go on, are cut, are changed or are made anew."""
    decisions: list[TokenDecision] = []
    so_far: tuple[int, ...] = draw(ids(1, 3))
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["goes on", "at once", "cut", "anew"]))
        prompt = {
            "goes on": so_far + draw(ids(1, 3)),
            "at once": so_far,
            "cut": so_far[:-1] or so_far,
            "anew": draw(ids(1, 4)),
        }[kind]
        sampled = draw(ids(0, 4))
        logprobs = tuple(-0.1 * (len(decisions) + i) for i in range(len(sampled)))
        temperature = draw(st.sampled_from([1.0, 1.0, 0.5]))
        decisions.append(TokenDecision(prompt, sampled, logprobs, temperature))
        so_far = prompt + sampled
    return decisions


def positions(sample: Segment) -> list[tuple[tuple[int, ...], int]]:
    return [(sample.ids[:i], sample.ids[i]) for i, is_in in enumerate(sample.sampled) if is_in]


@given(episodes())
def test_segments_contain_the_sampled_ids_of_the_decisions_in_order(
    decisions: list[TokenDecision],
) -> None:
    pieces = segments(decisions)
    assert [i for s in pieces for _, i in positions(s)] == [i for d in decisions for i in d.ids]
    assert [v for s in pieces for v in s.logprobs] == [v for d in decisions for v in d.logprobs]
    drawn_at = [d.temperature for d in decisions for _ in d.ids]
    assert [s.temperature for s in pieces for _ in s.logprobs] == drawn_at


@given(episodes())
def test_each_sampled_token_has_its_original_context(decisions: list[TokenDecision]) -> None:
    merged = Counter(pair for s in segments(decisions) for pair in positions(s))
    apart = Counter((d.prompt_ids + d.ids[:i], id) for d in decisions for i, id in enumerate(d.ids))
    assert merged == apart


@given(episodes())
def test_segments_that_can_be_merged_are_merged(decisions: list[TokenDecision]) -> None:
    pieces = segments(decisions)
    for first, second in pairwise(pieces):
        prompt = second.ids[: second.sampled.index(True)]
        assert prompt[: len(first.ids)] != first.ids or first.temperature != second.temperature


def test_a_dialogue_is_one_segment_with_its_observations_masked() -> None:
    first = TokenDecision((5, 6), (7, 8), (-0.1, -0.2))
    second = TokenDecision((5, 6, 7, 8, 9, 9), (4,), (-0.3,))
    (segment,) = segments([first, second])
    assert segment.ids == (5, 6, 7, 8, 9, 9, 4)
    assert segment.sampled == (False, False, True, True, False, False, True)
    assert segment.logprobs == (-0.1, -0.2, -0.3)


def test_a_retokenised_prompt_starts_a_new_segment_with_unchanged_ids() -> None:
    first = TokenDecision((5, 6), (7, 8), (-0.1, -0.2))
    second = TokenDecision((5, 6, 78, 9), (4,), (-0.3,))  # 78 reads like 7, 8
    pieces = segments([first, second])
    assert [s.ids for s in pieces] == [(5, 6, 7, 8), (5, 6, 78, 9, 4)]
    assert [s.sampled for s in pieces] == [(False, False, True, True), (False,) * 4 + (True,)]


def test_ids_that_do_not_match_logprobs_or_mask_are_refused() -> None:
    decision = TokenDecision((5, 6), (7, 8), (-0.1, -0.2))
    with pytest.raises(ValueError, match="one log-probability per sampled id"):
        dataclasses.replace(decision, ids=(78,))
    (segment,) = segments([decision])
    with pytest.raises(ValueError, match="3 ids, 4 mask values"):
        dataclasses.replace(segment, ids=(5, 6, 78))


def test_a_first_token_without_context_is_refused() -> None:
    with pytest.raises(ValueError, match="without prompt ids"):
        segments([TokenDecision((), (1,), (-0.1,))])


def test_choices_are_not_merged_into_segments() -> None:
    choice = ChoiceDecision(View("", ""), ("a", "b"), 1, -0.7)
    tokens = TokenDecision((1,), (2, 3), (-0.1, -0.2))
    pieces = samples([choice, choice, tokens])
    assert pieces[:2] == (choice, choice)
    assert pieces[2:] == segments([tokens])
    assert [n_sampled(sample) for sample in pieces] == [1, 1, 2]
    assert [n_tokens(sample) for sample in pieces] == [1, 1, 3]
    assert [recorded_logprobs(sample) for sample in pieces] == [(-0.7,), (-0.7,), (-0.1, -0.2)]
