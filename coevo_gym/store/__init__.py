"""Storage for a run on disk: its folder, its database and its checkpoints."""
