"""Scripts that create the built-in world with the real engine."""
