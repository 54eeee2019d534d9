"""The benchmark envs, one folder per benchmark, and the code that they share."""
