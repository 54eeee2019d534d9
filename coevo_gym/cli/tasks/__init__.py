"""``coevo tasks``: the tasks of benchmarks and runs."""
