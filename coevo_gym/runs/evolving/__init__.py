"""The models that a run's rounds query, and the cost of the queries."""
