"""The models that a run's rounds query, and the cost of these models."""
