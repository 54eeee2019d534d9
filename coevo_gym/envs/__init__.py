"""The benchmark envs, one folder per benchmark, and the code they share."""
