"""Code for separate Python interpreters. It imports nothing else from coevo_gym."""
