"""Functions for listing and deleting runs, tables and evaluations."""
