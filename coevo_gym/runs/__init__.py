"""Runs: their folders, stores and checkpoints, and the code that starts and resumes them."""
