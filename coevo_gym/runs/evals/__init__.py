"""Saved evaluations: identifying, resuming and comparing them."""
