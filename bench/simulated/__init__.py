"""A simulated learner with known strengths, for measuring the benefit of a curriculum.

Tasks are chains of skills. The learner has a strength per skill and learns by the exact policy
gradient, so a run takes about a second. Only the agent, its env and the explorer are simulated;
curriculum, session, evolver, gates and metrics are the same as in real runs.
"""
