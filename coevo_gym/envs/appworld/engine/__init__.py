"""The stock engine in separate processes, and the sandbox in which code runs."""
