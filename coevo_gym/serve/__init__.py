"""Servers that share a curriculum and its envs with trainers in other processes and machines."""
