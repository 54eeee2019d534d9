"""The text game engine: game rules, text generation and gameplay."""
