"""A search index of a run's episodes, groups, tasks and drafts."""
