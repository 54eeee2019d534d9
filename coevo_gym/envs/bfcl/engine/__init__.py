"""The official backends: their installation, their dispatcher, and a conversation with them."""
