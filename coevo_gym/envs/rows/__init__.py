"""Benchmarks made of rows of data and a function that judges answers."""

from coevo_gym.envs.rows.benchmark import RowsBenchmark, from_rows

__all__ = ["RowsBenchmark", "from_rows"]
