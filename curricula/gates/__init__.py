"""Gates: the checks that a draft must pass to become a task."""
