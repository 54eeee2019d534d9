"""What all rooms speak of: tasks, trajectories, rounds, benchmarks, and their Protocols."""
