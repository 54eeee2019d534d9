"""Methods: each file assembles the parts of a curriculum from a config."""
