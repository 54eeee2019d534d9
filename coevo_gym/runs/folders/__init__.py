"""Code that lists and deletes runs, tables and evaluations."""
