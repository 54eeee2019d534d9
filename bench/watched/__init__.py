"""Shared code of the benchmarks that measure whole processes."""
