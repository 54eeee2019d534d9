"""SEAL (arXiv 2605.24426), in which failed turns change the agent's interface and the advantages.

This package contains SEAL's formulas as pure functions, the memory of failures, the interface based
on this memory, and the method. The labels come from :mod:`coevo_gym.envs.diagnosis`.
"""
