"""The text game engine: its rules, its language, and running games."""
