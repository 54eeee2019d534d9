"""The stock engine in separate processes, and the sandbox that runs model-written code."""
