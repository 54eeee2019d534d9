"""Models that the rounds of a run ask, and their cost."""
