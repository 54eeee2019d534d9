"""Saved evaluations: their identity, resuming them, and comparing two of them."""
