"""User actions on a run's tasks: reading histories, reviewing held tasks, importing tasks."""
