"""Tables of evaluations: several models on several benchmarks, defined in one TOML file."""
