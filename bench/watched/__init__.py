"""What benchmarks of whole processes share."""
