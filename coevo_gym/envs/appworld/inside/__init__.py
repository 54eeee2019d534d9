"""Code that runs in other interpreters; it imports nothing else from coevo_gym."""
