"""Selectors, which choose the next task from the pool."""
