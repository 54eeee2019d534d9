"""Worker processes that run engines, and envs whose engines run in these processes."""
