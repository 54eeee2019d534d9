"""Sessions that run a curriculum, and samplers that wrap envs."""
