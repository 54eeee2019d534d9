"""Runs: their folders, stores and checkpoints, and the code that trains and resumes them."""
