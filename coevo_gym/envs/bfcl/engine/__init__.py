"""The official backends: where they are, how they are called, and a conversation with them."""
