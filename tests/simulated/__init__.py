"""Tests of the simulated learner."""
