"""Engines in processes of their own: worker processes, and envs whose engines run in them."""
