"""One folder a benchmark, all of one shape, and the shell they share."""
