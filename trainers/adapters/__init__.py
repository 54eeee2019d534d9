"""Adapters that let third-party trainers practise a curriculum session."""
