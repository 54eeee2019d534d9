"""Attacks in which model-written code fakes a solved task or reads hidden data."""
