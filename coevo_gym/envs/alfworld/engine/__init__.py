"""The text game: its rules, its words, and a game that is played."""
