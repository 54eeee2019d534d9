"""The table that a run or an evaluation ends in."""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.report.data import TableRow

RANDOM, WARMUP, SCRIPTED = "random", "warm-up", "scripted"
"""Names of the policies beside a run's arms."""


def table_row(name: str, numbers: Mapping[str, float], env_steps: int) -> TableRow:
    """A row of the final table, from an evaluation's numbers."""
    return TableRow(
        name=name,
        success=numbers["success_rate"],
        low=numbers["success_rate_low"],
        high=numbers["success_rate_high"],
        score=numbers["mean_score"],
        n_tasks=int(numbers["episodes"]),
        env_steps=env_steps,
    )
