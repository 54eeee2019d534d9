"""Weight updates from a batch of groups: samples, loss and optimiser."""
