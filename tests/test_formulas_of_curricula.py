"""The adapters of the formulas of curricula: one set of numbers for each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.formulas.by_name import CURRICULA, FORMULAS, are_equal

POINTS = {"X": [[1, 0], [0, 1], [-1, 0], [0.6, 0.8]], "covered": [[1, 0]], "k": 3}
NUMBERS: dict[str, tuple[dict[str, Any], Any]] = {
    "budget.allow": (
        {
            "requests": [[1000, 1000], [1000, 1000], [1000, 1000]],
            "calls": None,
            "tokens": None,
            "usd": 0.005,
            "usd_prompt": 1.0,
            "usd_completion": 1.0,
        },
        2,
    ),
    "coevolve.forgetting": ({"history": [1, 0, 0, 0], "s_now": 0, "W": 3}, False),
    "coevolve.rare": (
        {"counts": {"A": 96, "B": 4}, "pattern": "B", "theta": 5, "n_min": 64, "min_support": 2},
        True,
    ),
    "coevolve.share_out": (
        {"pending": {"forgetting": 5, "boundary": 20, "rare": 1}, "n": 12},
        {"forgetting": 5, "boundary": 6, "rare": 1},
    ),
    "coevolve.evidence_cut": (
        {"sizes": [100, 900, 900, 900, 100, 100], "cap": 1250},
        [0, 3, 4, 5],
    ),
    "coevolve.sr": ({"Y": [[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], "k": 1}, 0.88),
    "coevolve.ed": (
        {"X": [[0, 0], [2, 0]], "Y": [[0, 0], [0, 2]], "estimator": "u"},
        {"absolute": -0.585786437627, "relative": -0.292893218813},
    ),
    "coevolve.similarity_bins": (
        {"similarity": [0.828, 0.2157, 0.6034, 0.4071, 0.2228, 0.7797, 0.4948], "n_mixed": 6},
        {"low": [1, 4], "mid": [2, 3, 6], "high": [0, 5], "mixed": [0, 1, 2, 3, 4, 5]},
    ),
    "coevolve.solve_band": ({"tries": 4, "solved": 4, "low": 0.0, "high": 0.75}, False),
    "curriculum.stages": (
        {"rates": [0.1, 0.9, 0.5, 0.5, 0], "stages": 3, "progress": 0.34, "cumulative": False},
        [0, 3],
    ),
    "adarft.target": (
        {"target": 50.1789, "reward": 0.8727, "alpha": 2.0, "beta": 0.5, "eta": 50.0},
        81.798731784,
    ),
    "adarft.batch": ({"difficulty": [10, 20, 30, 40], "target": 25.0, "n": 3}, [0, 1, 2]),
    "plr": (
        {"scores": [0.1, 0.9, 0.5], "last": [0, 8, 5], "now": 10, "beta": 1.0, "rho": 0.1},
        [0.222459893, 0.502673797, 0.27486631],
    ),
    "select.farthest_first": (POINTS, [2, 1, 3]),
    "select.quota": (
        {"n": 8, "share": 0.5, "guided": 2, "coverage": 100},
        {"guided": 2, "coverage": 6},
    ),
    "select.learnability": ({"successes_visits": [[0, 0], [0, 8]]}, [0.25, 0.09]),
    "select.ema": (
        {"outcomes": [1.0, 0.0, 1.0], "fast": 0.5, "slow": 0.1},
        {"fast": 0.75, "slow": 0.91},
    ),
    "select.progress_nearby": (
        {"context": [1, 0], "X": [[1, 0], [1, 1]], "fast": [0.5, 0.9], "slow": [0.2, 0.0]},
        0.5,
    ),
    "context.merge": (
        {
            "snapshots": [
                [[1, 2], [False, True]],
                [[1, 2, 3, 4], [False, False, False, True]],
                [[1, 9], [False, True]],
            ]
        },
        [[[1, 2, 3, 4], [False, True, False, True]], [[1, 9], [False, True]]],
    ),
}


def test_every_curriculum_formula_has_expected_numbers() -> None:
    assert NUMBERS.keys() == CURRICULA.keys()
    assert CURRICULA.keys() <= FORMULAS.keys()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_curriculum_formula_matches_the_expected_numbers(name: str) -> None:
    inputs, expected = NUMBERS[name]
    actual = FORMULAS[name](inputs)
    assert are_equal(actual, expected), actual
