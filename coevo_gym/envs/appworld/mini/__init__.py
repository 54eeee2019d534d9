"""The built-in world: scripts that create it with the real engine, in the engine's own Python."""
