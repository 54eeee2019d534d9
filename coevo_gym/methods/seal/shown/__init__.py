"""What an agent is shown beyond the text of its env, and who decides it."""
