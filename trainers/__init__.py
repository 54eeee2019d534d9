"""Training, with advantages, losses, learners and the training loop."""
