"""The verb that serves a curriculum and its envs."""
