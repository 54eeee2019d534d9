"""A curriculum being practised: its tickets and groups, and the samplers that wrap envs."""
