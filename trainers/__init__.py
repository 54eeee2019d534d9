"""How to learn: advantages, losses, learners, the loop."""
