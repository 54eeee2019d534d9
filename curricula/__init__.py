"""Curricula and their components: task pool, selectors, signals, gates, sessions and samplers."""
