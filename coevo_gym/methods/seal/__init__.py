"""SEAL (arXiv 2605.24426): failures of the turns reshape what is shown and weigh what is learned.

Here are its formulas, each a pure function, the memory of what has failed, what is shown by it, and
the method that they make. The labels that they read are those of :mod:`coevo_gym.envs.diagnosis`.
"""
