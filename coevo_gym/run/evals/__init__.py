"""Evaluations that stay: what they depend on, how they go on, and what two of them say."""
