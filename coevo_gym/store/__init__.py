"""What a run keeps on disk: its folder, its database, its checkpoints."""
