"""The agent's interface beyond the text of its env, and the coach that sets it."""
