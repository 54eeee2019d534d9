"""Selectors: rules that choose the next task from the pool."""
