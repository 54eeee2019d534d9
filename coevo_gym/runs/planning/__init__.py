"""Estimates of the memory, hours and disk that training a language model takes."""
