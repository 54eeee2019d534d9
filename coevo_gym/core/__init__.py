"""Data types and Protocols shared by the whole package: tasks, trajectories, rounds, benchmarks."""
