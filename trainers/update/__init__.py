"""Weight updates: batches, losses and optimisers (requires PyTorch)."""

from coevo_gym.provision import extra_advice

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    advice = extra_advice("train")
    raise ImportError(f"Training needs PyTorch. {advice}.") from error
