"""Growth: when a round explores, and from where."""
