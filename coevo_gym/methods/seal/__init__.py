"""SEAL (arXiv 2605.24426): failed turns change the agent's interface and the weights of learning.

This package has its formulas as pure functions, the memory of failures, the interface that follows
from them, and the method. Its labels come from :mod:`coevo_gym.envs.diagnosis`.
"""
