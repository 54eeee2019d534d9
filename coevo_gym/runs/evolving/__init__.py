"""Models that a run's rounds query, and their cost."""
