"""The weaknesses that are read from rollouts."""
