from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from coevo_gym.core.trajectory import EndReason, TokenDecision  # noqa: E402
from coevo_gym.trainers.advantages import (  # noqa: E402
    gigpo_advantages,
    group_advantages,
    judge,
    leave_one_out_advantages,
    overlong_penalty,
    returns,
    step_advantages,
)
from coevo_gym.trainers.settings import GRPOConfig  # noqa: E402
from tests.trainers.episodes import group, trajectory  # noqa: E402

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def flat(rows: Any) -> list[float]:
    return [value for row in rows for value in row]


def doubles(*rewards: float) -> torch.Tensor:
    return torch.tensor([rewards], dtype=torch.float64)


class TestLeaveOneOut:
    def test_vector(self) -> None:
        found = leave_one_out_advantages(doubles(*VECTORS["rloo"]["R"]))
        assert found[0].tolist() == pytest.approx(VECTORS["rloo"]["expected"], abs=1e-9)

    def test_is_the_distance_from_the_mean_of_the_others(self) -> None:
        found = leave_one_out_advantages(doubles(3.0, 1.0, 5.0))
        assert found[0].tolist() == pytest.approx([0.0, -3.0, 3.0])

    def test_lost_rollouts_are_no_baseline(self) -> None:
        mask = torch.tensor([[True, True, True, False]])
        found = leave_one_out_advantages(doubles(3.0, 1.0, 5.0, 99.0), mask)
        assert found[0].tolist() == pytest.approx([0.0, -3.0, 3.0, 0.0])
        alone = torch.tensor([[True, False, False, False]])
        assert leave_one_out_advantages(doubles(1.0, 0.0, 0.0, 0.0), alone).tolist() == [[0.0] * 4]

    def test_equal_rewards_are_0(self) -> None:
        assert leave_one_out_advantages(doubles(*[0.1] * 7)).tolist() == [[0.0] * 7]


class TestGiGPO:
    @pytest.mark.parametrize("name", ["gigpo.mean_norm", "gigpo.mean_std_norm"])
    def test_vectors(self, name: str) -> None:
        vector, std = VECTORS[name], name.endswith("std_norm")
        states, rewards, gamma = vector["states"], vector["rewards"], vector["gamma"]
        found = [returns(one, gamma) for one in rewards]
        assert flat(found) == pytest.approx(flat(vector["returns"]))
        outcomes = doubles(*map(sum, rewards))
        episodes = group_advantages(outcomes, normalise_std=std)[0].tolist()
        assert episodes == pytest.approx(vector["A_E"], abs=1e-9)
        steps = step_advantages(states, rewards, gamma=gamma, normalise_std=std)
        assert flat(steps) == pytest.approx(flat(vector["A_S"]), abs=1e-9)
        both = gigpo_advantages(
            outcomes, states, rewards, gamma=gamma, weight=vector["w"], normalise_std=std
        )
        assert [len(one) for one in both] == [len(one) for one in states]
        assert flat(both) == pytest.approx(flat(vector["A"]), abs=1e-9)

    def test_a_state_met_once_says_nothing_about_its_step(self) -> None:
        found = step_advantages([["a", "b"], ["a", "c"]], [[0, 1], [0, 0]], normalise_std=False)
        assert found[0] == pytest.approx([0.475, 0.0])
        assert found[1] == pytest.approx([-0.475, 0.0])

    def test_a_lost_rollout_is_compared_with_nobody(self) -> None:
        mask = torch.tensor([[True, True, False]])
        states = [["a"], ["a"], ["a", "b"]]
        found = gigpo_advantages(doubles(1, 0, 1), states, [[1], [0], [0, 1]], mask)
        without = gigpo_advantages(doubles(1, 0), states[:2], [[1], [0]])
        assert found == [*without, [0.0, 0.0]]


def test_overlong_penalty_falls_over_the_buffer() -> None:
    lengths = (0, 12, 13, 15, 16, 17, 400)
    found = [overlong_penalty(n, max_tokens=16, buffer_tokens=4) for n in lengths]
    assert found == pytest.approx([0.0, 0.0, -0.25, -0.75, -1.0, -1.0, -1.0])


class TestJudge:
    def test_the_outcome_is_earned_by_the_last_step_and_states_are_observations(self) -> None:
        solved = trajectory([None] * 2, success=True, states=["room", "shelf"])
        failed = trajectory([None] * 3, states=["room", "hall", "shelf"])
        found = judge(group(solved, failed), GRPOConfig(advantage="gigpo", normalise_std=False))
        assert flat(found) == pytest.approx([0.5 + 0.475, 0.5 + 0.5, -0.5 - 0.475, -0.5, -1.0])

    def test_an_episode_without_a_step(self) -> None:
        found = judge(
            group(trajectory([]), trajectory([None], success=True)), GRPOConfig(advantage="gigpo")
        )
        assert found[0] == []

    @pytest.mark.parametrize("advantage", ["grpo", "rloo"])
    def test_a_lost_worker_is_no_failure(self, advantage: str) -> None:
        solved, failed = trajectory([None], success=True), trajectory([None])
        lost = trajectory([None], end=EndReason.WORKER_LOST)
        config = GRPOConfig(advantage=advantage)  # type: ignore[arg-type]
        assert judge(group(solved, failed, lost), config) == [
            *judge(group(solved, failed), config),
            0.0,
        ]

    def test_length_is_punished_before_rollouts_are_compared(self) -> None:
        def answer(n: int) -> TokenDecision:
            return TokenDecision((1,), (2,) * n, (-0.1,) * n)

        short, long = (trajectory([answer(2), answer(n)], success=True) for n in (2, 4))
        settings = GRPOConfig(
            overlong="penalty",
            overlong_max_tokens=8,
            overlong_buffer_tokens=4,
            normalise_std=False,
        )
        assert judge(group(short, long), settings) == pytest.approx([0.25, -0.25])
        kept = settings.model_copy(update={"overlong": "keep"})
        assert judge(group(short, long), kept) == [0.0, 0.0]

    def test_the_buffer_is_part_of_the_limit(self) -> None:
        with pytest.raises(ValueError, match=r"overlong_buffer_tokens \(9\)"):
            GRPOConfig(overlong_max_tokens=8, overlong_buffer_tokens=9)
