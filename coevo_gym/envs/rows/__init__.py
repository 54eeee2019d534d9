"""Benchmarks made of rows of data and a function that judges answers."""

from coevo_gym.envs.rows.benchmark import RowsBenchmark
from coevo_gym.envs.rows.growth import RowFindings
from coevo_gym.envs.rows.registration import from_rows

__all__ = ["RowFindings", "RowsBenchmark", "from_rows"]
