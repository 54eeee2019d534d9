"""Rollouts: the episodes of a training step, run in lock step or as a stream."""
