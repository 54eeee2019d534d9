"""User actions on a run's tasks: reviewing them, importing new ones and reading their history."""
