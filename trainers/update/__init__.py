"""Weight updates: batches, losses and optimisers (requires PyTorch)."""

from coevo_gym.provision import explaining

with explaining("Training needs PyTorch.", "train"):
    import torch  # noqa: F401
