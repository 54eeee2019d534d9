"""How to learn: rollouts, GRPO, evaluation, the loop."""
