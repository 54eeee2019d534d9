"""Selectors: which task of the pool is practised next."""
