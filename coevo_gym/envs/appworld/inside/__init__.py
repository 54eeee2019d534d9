"""What runs in other interpreters than ours; it imports nothing of the rest of coevo_gym."""
