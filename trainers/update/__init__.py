"""Code that updates weights: samples, loss and optimiser (requires PyTorch)."""

from coevo_gym.provision import extra_advice

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"Training needs PyTorch. {extra_advice('train')}.") from error
