"""Responses computed from runs and evaluations, one module per topic."""
