"""Data types and Protocols shared by the whole package, such as tasks, rounds and benchmarks."""
