"""User actions on a run's tasks: reading their history, reviewing and importing tasks."""
