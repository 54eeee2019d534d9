"""Work of people on the tasks of a run: read histories, review held tasks, import tasks."""
