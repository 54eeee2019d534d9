"""Shared code for benchmarks that measure whole processes."""
