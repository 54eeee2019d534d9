"""Estimates of the memory, hours and disk space needed to train a language model."""
