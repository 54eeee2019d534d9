"""Attacks in which model-written code fakes success on a task or reads hidden data."""
