"""Curricula and their parts: the task pool, selectors, signals, gates, sessions and samplers."""
