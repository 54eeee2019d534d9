"""Code that runs in separate Python interpreters. It imports nothing else from coevo_gym."""
