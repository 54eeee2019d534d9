"""Language models served by an OpenAI-compatible endpoint."""
