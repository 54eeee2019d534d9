"""Verbs for runs: train, resume, report, list and delete."""
