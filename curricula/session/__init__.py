"""Sessions that run a curriculum, with their tickets and groups, and samplers that wrap envs."""
