"""Growth: rules for when a round explores, and from which contexts."""
