"""Functions that identify, resume and compare saved evaluations."""
