"""Curricula: signals, the task pool, groups, gates and samplers that choose the next tasks."""
