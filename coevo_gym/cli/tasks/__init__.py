"""``coevo tasks``: list, show, review, import and export tasks."""
