"""The stock engine in processes of its own, and the sandbox where code runs."""
