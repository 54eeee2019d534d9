"""What a language model needs of a GPU or of a machine: memory, hours, disk."""
