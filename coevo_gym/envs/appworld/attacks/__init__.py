"""Attempts of model-written code to have a task counted as solved, or to read hidden data."""
