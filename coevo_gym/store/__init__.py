"""Files that a run stores on disk: its folder, its database and its checkpoints."""
