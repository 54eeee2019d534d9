"""Training: advantages, losses, learners and the training loop."""
