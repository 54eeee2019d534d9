"""A run: its folder, its store, its checkpoints, and how it is trained and resumed."""
