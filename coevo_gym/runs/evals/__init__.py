"""Saved evaluations: how to identify, resume and compare them."""
