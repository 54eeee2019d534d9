"""What a draft must pass to become a task."""
