"""The pool of training tasks, and statistics about its tasks."""
