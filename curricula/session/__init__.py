"""Sessions that practise a curriculum: tickets, groups, and the samplers that wrap envs."""
