"""SEAL (arXiv 2605.24426): failures of the turns reshape what is shown and weigh what is learned.

Here are its formulas, each a pure function, and the memory of what has failed. The labels that
they read are those of :mod:`coevo_gym.envs.diagnosis`.
"""
