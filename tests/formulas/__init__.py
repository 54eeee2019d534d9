"""Formulas by name, which call the functions that training calls."""
