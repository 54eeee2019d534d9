"""The rise by choosing the best of n evaluations, against policies whose rates are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coevo_gym.runs.evals.best_of_n import best_of_n_rise, fit_beta


def known_policy(
    alpha: float, beta: float, tasks: int, k: int, seed: int
) -> tuple[list[float], list[int]]:
    """Rates of a policy, and its successes in k episodes of each task."""
    rng = np.random.default_rng(seed)
    rates = rng.beta(alpha, beta, tasks)
    return rates.tolist(), rng.binomial(k, rates).tolist()


def true_rise(rates: list[float], n: int, samples: int = 1, draws: int = 2_000) -> float:
    """The rise of the best of n evaluations above the true rate, simulated with the true rates."""
    rng = np.random.default_rng(17)
    best = [
        rng.binomial(samples, rates, size=(n, len(rates))).mean(axis=1).max() / samples
        for _ in range(draws)
    ]
    return float(100 * (np.mean(best) - np.mean(rates)))


@pytest.mark.parametrize(("alpha", "beta"), [(1.5, 0.5), (0.4, 0.4), (6.0, 3.0)])
def test_the_rise_of_the_best_of_31_is_that_of_the_true_rates(alpha: float, beta: float) -> None:
    rates, successes = known_policy(alpha, beta, tasks=140, k=8, seed=3)
    rise = best_of_n_rise(successes, [8] * 140, n=31)
    assert rise.points == pytest.approx(true_rise(rates, 31), abs=0.3)
    assert rise.error < 0.06


def test_four_samples_give_the_right_rise_on_average_where_shares_give_too_little() -> None:
    by_draws, by_shares = [], []
    for seed in range(12):
        rates, successes = known_policy(1.5, 0.5, tasks=128, k=4, seed=seed)
        truth = true_rise(rates, 31, draws=400)
        rise = best_of_n_rise(successes, [4] * 128, n=31, seed=seed, draws=200)
        by_draws.append(rise.points - truth)
        by_shares.append(true_rise([s / 4 for s in successes], 31, draws=200) - truth)
    assert abs(np.mean(by_draws)) < 0.25
    assert np.mean(by_shares) < -0.5


def test_a_fixed_panel_of_140_tasks_raises_the_best_of_31_by_six_points() -> None:
    _, successes = known_policy(1.5, 0.5, tasks=140, k=16, seed=0)
    assert best_of_n_rise(successes, [16] * 140, n=31).points == pytest.approx(6.0, abs=0.4)


def test_more_samples_per_evaluation_lower_the_rise_by_their_square_root() -> None:
    _, successes = known_policy(1.5, 0.5, tasks=140, k=8, seed=1)
    one = best_of_n_rise(successes, [8] * 140, n=10)
    four = best_of_n_rise(successes, [8] * 140, n=10, samples_per_evaluation=4)
    assert one.points / four.points == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize("successes", [[8] * 20, [0] * 20, [0, 8] * 10])
def test_tasks_with_a_certain_outcome_cause_no_rise(successes: list[int]) -> None:
    assert best_of_n_rise(successes, [8] * 20, n=31, draws=50).points == pytest.approx(0, abs=0.3)


def test_one_evaluation_leaves_no_choice() -> None:
    assert best_of_n_rise([2, 3], [4, 4], n=1, draws=10).points == 0


def test_the_same_seed_gives_the_same_rise() -> None:
    first, second = (best_of_n_rise([2, 3, 4], [4] * 3, n=5, draws=20, seed=7) for _ in range(2))
    assert first == second
    assert first != best_of_n_rise([2, 3, 4], [4] * 3, n=5, draws=20, seed=8)


@pytest.mark.parametrize(("alpha", "beta"), [(1.5, 0.5), (0.3, 0.6), (5.0, 5.0)])
def test_the_fit_recovers_a_known_beta_distribution(alpha: float, beta: float) -> None:
    _, successes = known_policy(alpha, beta, tasks=20_000, k=4, seed=5)
    assert fit_beta(successes, [4] * 20_000) == pytest.approx((alpha, beta), rel=0.08)


def test_the_fit_is_a_maximum_of_the_beta_binomial_likelihood() -> None:
    successes, samples = [0, 1, 2, 4, 4, 3, 5, 8], [4, 4, 4, 4, 4, 4, 8, 8]

    def likelihood(alpha: float, beta: float) -> float:
        return math.fsum(
            math.lgamma(alpha + s) + math.lgamma(beta + k - s) - math.lgamma(alpha + beta + k)
            + math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)
            for s, k in zip(successes, samples, strict=True)
        )  # fmt: skip

    alpha, beta = fit_beta(successes, samples)
    best = likelihood(alpha, beta)
    for factor in (0.98, 1.02):
        assert likelihood(alpha * factor, beta) < best
        assert likelihood(alpha, beta * factor) < best


@pytest.mark.parametrize(
    ("successes", "samples", "n", "message"),
    [
        ([1, 2], [3, 4], 5, "at least 4 episodes per task, got 3"),
        ([5], [4], 5, "cannot have 5 successes in 4 episodes"),
        ([-1], [4], 5, "cannot have -1 successes"),
        ([1], [4, 4], 5, "cover the same tasks, got 1 and 2"),
        ([], [], 5, "cover the same tasks, got 0 and 0"),
        ([1], [4], 0, "n >= 1"),
    ],
)
def test_impossible_counts_and_too_few_samples_are_refused(
    successes: list[int], samples: list[int], n: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        best_of_n_rise(successes, samples, n=n)
