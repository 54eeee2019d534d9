"""Worker processes for engines, and envs whose engines run in them."""
