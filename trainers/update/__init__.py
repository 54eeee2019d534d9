"""Weight updates: batches, losses and optimisers (requires PyTorch)."""

from coevo_gym.provision import explain_missing

with explain_missing("Training needs PyTorch.", "train"):
    import torch  # noqa: F401
