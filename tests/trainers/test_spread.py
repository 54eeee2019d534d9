"""Advantages spread over what was sampled, for our learners and for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import ChoiceDecision, TokenDecision, View
from coevo_gym.trainers.segments import segments
from coevo_gym.trainers.token_advantages import has_learning_signal, token_advantages
from tests.trainers.episodes import trajectory
from tests.trainers.test_segments import episodes


def test_advantages_can_be_given_per_episode_per_step_or_per_token() -> None:
    first, second = TokenDecision((1,), (2, 3), (-1.0,) * 2), TokenDecision((9,), (4,), (-1.0,))
    episode = trajectory([first, None, second])
    assert token_advantages(episode, 0.5) == [[0.5, 0.5], [0.5]]
    assert token_advantages(episode, [1.0, 2.0, 3.0]) == [[1.0, 1.0], [3.0]]
    assert token_advantages(episode, [[1.0, -1.0], 2.0, [3.0]]) == [[1.0, -1.0], [3.0]]
    assert has_learning_signal([0.0, [0.0, [0.0, 0.1]]])
    assert not has_learning_signal([0.0, [0.0, [0.0, 0.0]]])


def test_each_choice_has_one_advantage() -> None:
    choice = ChoiceDecision(View("i", "o"), ("act", "wait"), 0, -0.5)
    chosen = trajectory([choice, choice])
    assert token_advantages(chosen, [1.0, 2.0]) == [[1.0], [2.0]]
    assert token_advantages(trajectory([]), []) == []


@given(episodes(), st.integers(0, 2**31))
def test_every_sampled_id_has_the_advantage_of_its_decision(
    decisions: list[TokenDecision], seed: int
) -> None:
    values = [float(n) for n in range(seed % 7, seed % 7 + len(decisions))]
    advantages = token_advantages(trajectory(decisions), values)
    assert [len(row) for row in advantages] == [len(s.logprobs) for s in segments(decisions)]
    expected = [v for v, d in zip(values, decisions, strict=True) for _ in d.ids]
    assert [value for row in advantages for value in row] == expected


@pytest.mark.parametrize(
    ("advantage", "message"),
    [([1.0], "1 advantages for 2 steps"), ([1.0, [1.0]], "1 advantages .* 2 sampled tokens")],
)
def test_too_few_advantages_are_refused(advantage: Advantage, message: str) -> None:
    decision = TokenDecision((1,), (2, 3), (-1.0,) * 2)
    with pytest.raises(ValueError, match=message):
        token_advantages(trajectory([decision, decision]), advantage)
