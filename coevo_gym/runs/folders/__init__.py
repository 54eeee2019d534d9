"""Listing and deleting runs, tables and evaluations."""
