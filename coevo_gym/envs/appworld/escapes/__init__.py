"""What model-written code may try, to have a task counted as solved, or to see more."""
