"""SEAL (arXiv 2605.24426), a method that uses failed turns to adapt the agent's interface.

This package contains SEAL's formulas as pure functions, the memory of failures, the interface based
on this memory, and the method. The labels come from :mod:`coevo_gym.envs.diagnosis`.
"""
