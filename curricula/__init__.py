"""Curricula, which choose the next tasks: signals, the task pool, groups, gates and samplers."""
