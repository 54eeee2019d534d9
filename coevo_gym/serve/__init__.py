"""A server that shares a curriculum and its envs with other processes and machines."""
