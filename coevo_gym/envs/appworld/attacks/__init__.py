"""Attacks by model-written code, which has a task counted as solved or reads hidden data."""
