"""The built-in world: scripts that make it with the real engine, in the engine's own Python."""
