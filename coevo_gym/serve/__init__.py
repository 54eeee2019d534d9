"""A curriculum and its envs for trainers of other processes, machines and venvs."""
