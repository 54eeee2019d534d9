"""The models queried during a run's rounds, and the cost of the queries."""
