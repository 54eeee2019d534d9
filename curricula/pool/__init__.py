"""The pool of training tasks, and statistics of its tasks."""
