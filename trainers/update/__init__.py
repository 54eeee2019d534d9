"""How a batch of groups changes weights: samples, the loss, the optimiser."""
