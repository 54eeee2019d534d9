"""Estimates of the memory and disk space needed to train a language model."""
