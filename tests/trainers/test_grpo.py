from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from coevo_gym.trainers.advantages import relative_to_group  # noqa: E402
from coevo_gym.trainers.grpo import (  # noqa: E402
    GRPOConfig,
    grpo_loss,
    k3,
    trajectory_weights,
)
from coevo_gym.trainers.update.loss import MAX_KL, MAX_LOG_RATIO  # noqa: E402

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def surrogate(ratio: float, advantage: float, **clips: float) -> float:
    """The policy objective of one decision with this ratio."""
    logp, zero = torch.tensor([[math.log(ratio)]], dtype=torch.float64), torch.zeros(1, 1)
    mask = torch.ones(1, 1, dtype=torch.bool)
    terms = grpo_loss(logp, zero, logp, torch.tensor([float(advantage)]), mask, **clips)
    return -terms.policy_loss.item()


def batch(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor(
        [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]
    ).bool()

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = -draw(5, 4).abs()
    return {
        "logp": old + 0.3 * draw(5, 4),
        "old_logp": old,
        "ref_logp": old + 0.2 * draw(5, 4),
        "advantage": draw(5),
        "mask": mask,
    }


class TestAdvantages:
    @pytest.mark.parametrize("name", ["grpo.sample_std", "grpo.no_std", "grpo.zero_variance"])
    def test_advantages_equal_reference_values(self, name: str) -> None:
        vector = VECTORS[name]
        advantages = relative_to_group(vector["R"], normalise_std=name != "grpo.no_std")
        assert advantages == pytest.approx(vector["expected"], abs=1e-9)

    def test_lost_rollouts_are_left_out_not_scored_0(self) -> None:
        advantages = relative_to_group([1.0, 0.0, 0.0, 9.0], [True, True, True, False])
        assert advantages == [*relative_to_group([1.0, 0.0, 0.0]), 0.0]
        assert relative_to_group([1.0, 9.0], [True, False]) == [0.0, 0.0]


class TestLoss:
    def test_clipped_surrogates_equal_reference_values(self) -> None:
        vector = VECTORS["grpo.clip"]
        values = [surrogate(ratio, advantage) for ratio, advantage in vector["r_A"]]
        assert values == pytest.approx(vector["expected"])

    @pytest.mark.parametrize(
        ("ratio", "advantage", "expected"),
        [(1.35, 1, 1.28), (0.7, -1, -0.8), (1.35, -1, -1.35), (0.7, 1, 0.7)],
    )
    def test_only_the_pessimistic_side_is_clipped(
        self, ratio: float, advantage: float, expected: float
    ) -> None:
        assert surrogate(ratio, advantage) == pytest.approx(expected)

    def test_k3_divergences_equal_reference_values(self) -> None:
        vector = VECTORS["kl.k3"]
        kl = k3(torch.tensor(vector["lp"]), torch.tensor(vector["ref"]))
        assert kl.tolist() == pytest.approx(vector["expected"], abs=1e-6)
        one = k3(torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64))
        assert one.item() == pytest.approx(0.0214028, abs=1e-7)

    def test_the_loss_is_a_mean_over_tokens_or_over_trajectories(self) -> None:
        vector = VECTORS["grpo.aggregation"]
        ratio = torch.tensor([[*vector["per_token"][0]], [1.0, 9.0, 9.0]], dtype=torch.float64)
        mask = torch.tensor([[True, True, True], [True, False, False]])
        zero = torch.zeros(2, 3, dtype=torch.float64)
        # With advantage 1 and ratios below 1.28 the surrogate is the ratio itself.
        terms = grpo_loss(ratio.log(), zero, zero, torch.ones(2), mask, kl_coef=0.0)
        assert -terms.policy_loss.item() == pytest.approx(vector["token_mean"])
        weight = trajectory_weights(torch.tensor([0, 1]), mask.sum(dim=1))
        terms = grpo_loss(ratio.log(), zero, zero, torch.ones(2), mask, kl_coef=0.0, weight=weight)
        assert -terms.policy_loss.item() == pytest.approx(vector["seq_mean"])

    def test_trajectories_with_many_and_few_decisions_weigh_the_same(self) -> None:
        weight = trajectory_weights(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 2, 4]))
        assert weight.tolist() == pytest.approx([1.0] * 4)
        weight = trajectory_weights(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 1]))
        assert weight.tolist() == pytest.approx([2 / 3] * 3 + [2.0])

    def test_a_group_with_zero_advantages_leaves_only_the_kl_term(self) -> None:
        values = batch() | {"advantage": torch.zeros(5, dtype=torch.float64)}
        values["logp"].requires_grad_()
        terms = grpo_loss(**values, kl_coef=0.5)
        mask = values["mask"]
        kl = k3(values["logp"], values["ref_logp"])[mask].mean()
        assert terms.policy_loss.item() == 0.0
        assert terms.loss.item() == pytest.approx(0.5 * kl.item())
        (gradient,) = torch.autograd.grad(terms.loss, values["logp"], retain_graph=True)
        (expected,) = torch.autograd.grad(0.5 * kl, values["logp"])
        torch.testing.assert_close(gradient, expected)

    def test_masked_positions_have_no_gradient_even_if_they_are_nan(self) -> None:
        values = batch()
        clean = grpo_loss(**values).loss.item()
        for name in ("logp", "old_logp", "ref_logp"):
            values[name] = values[name].masked_fill(~values["mask"], math.nan)
        values["logp"].requires_grad_()
        terms = grpo_loss(**values)
        terms.loss.backward()
        assert terms.loss.item() == pytest.approx(clean)
        gradient = values["logp"].grad
        assert gradient is not None
        assert gradient[~values["mask"]].tolist() == [0.0] * int((~values["mask"]).sum())
        assert (gradient[values["mask"]] != 0).any()

    def test_losses_and_gradients_of_parts_add_up_to_the_whole_batch(self) -> None:
        values = batch()
        logp = values["logp"].requires_grad_()
        whole = grpo_loss(**values)
        whole.loss.backward()
        expected, logp.grad = logp.grad, None
        total = float(values["mask"].sum())
        losses = []
        for rows in ([0], [1, 2], [3, 4]):
            part = {name: value[rows] for name, value in values.items()}
            losses.append(grpo_loss(**part, total=total).loss)
        torch.stack(losses).sum().backward()
        assert sum(loss.item() for loss in losses) == pytest.approx(whole.loss.item())
        torch.testing.assert_close(logp.grad, expected)

    def test_the_gradient_equals_the_hand_computed_one(self) -> None:
        values = batch(seed=3)
        logp = values["logp"].requires_grad_()
        grpo_loss(**values, kl_coef=0.1).loss.backward()
        expected = torch.zeros_like(logp)
        count = int(values["mask"].sum())
        for b, t in values["mask"].nonzero().tolist():
            lp, adv = logp[b, t].item(), values["advantage"][b].item()
            ratio = math.exp(lp - values["old_logp"][b, t].item())
            frozen = (adv > 0 and ratio > 1.28) or (adv < 0 and ratio < 0.8)
            policy = 0.0 if frozen else -adv * ratio
            kl = 1.0 - math.exp(values["ref_logp"][b, t].item() - lp)
            expected[b, t] = (policy + 0.1 * kl) / count
        assert logp.grad is not None
        torch.testing.assert_close(logp.grad, expected)

    @pytest.mark.parametrize("gap", [30.0, 1000.0, math.inf])
    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    def test_extreme_ratios_and_divergences_are_bounded(self, gap: float, advantage: float) -> None:
        logp = torch.zeros(2, 1, requires_grad=True)
        other = torch.tensor([[-gap], [gap]])  # a ratio of e^gap, and one of e^-gap
        mask, adv = torch.ones(2, 1, dtype=torch.bool), torch.full((2,), advantage)
        terms = grpo_loss(logp, other, other, adv, mask, kl_coef=1.0)
        highest = 1.28 if advantage > 0 else -math.exp(MAX_LOG_RATIO)
        lowest = math.exp(-MAX_LOG_RATIO) if advantage > 0 else -0.8
        assert terms.policy_loss.item() == pytest.approx(-(highest + lowest) / 2)
        assert terms.kl.item() == pytest.approx(MAX_KL)
        terms.loss.backward()
        assert logp.grad is not None
        assert logp.grad.tolist() == [[0.0], [0.0]]

    def test_k3_is_unchanged_below_its_bound(self) -> None:
        # exp(2.6) - 2.6 - 1 = 9.86 is the last tenth below the bound of k3.
        gap = torch.tensor([-10.9, -1.0, 0.5, 2.6], dtype=torch.float64, requires_grad=True)
        kl = k3(torch.zeros(4, dtype=torch.float64), gap)
        torch.testing.assert_close(kl, gap.exp() - gap - 1)
        (slope,) = torch.autograd.grad(kl.sum(), gap)
        torch.testing.assert_close(slope, (gap.exp() - 1).detach())

    def test_each_decision_can_have_its_own_upper_clip(self) -> None:
        logp = torch.full((2, 1), math.log(1.5))
        zero, mask = torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool)
        terms = grpo_loss(
            logp, zero, logp, torch.ones(2), mask, clip_high=torch.tensor([0.28, 0.6])
        )
        assert -terms.policy_loss.item() == pytest.approx((1.28 + 1.5) / 2)
        assert terms.clip_fraction.item() == pytest.approx(0.5)


def test_a_learning_rate_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        GRPOConfig(lr=0)
