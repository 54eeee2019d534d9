"""Steps of an optimiser: its warm-up, and what becomes of a step that would do harm."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from coevo_gym.core.errors import TrainingDiverged
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.settings import UpdateConfig

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"Training needs PyTorch. {extra_advice('train')}.") from error

_LOG = logging.getLogger(__name__)
MAX_NONFINITE_IN_A_ROW = 3
"""So many steps in a row without a finite loss and gradient end the training."""


_FUSED_FROM = 1_000_000
"""Weights from which on Adam's fused kernel, which takes a quarter of the time on a CPU and no
temporary copies on a GPU, is worth its other rounding. Runs of smaller policies stay equal to the
last bit."""


def fuses(weights: Iterable[torch.nn.Parameter]) -> bool:
    """Return whether to use Adam's fused kernel for these weights."""
    return sum(weight.numel() for weight in weights) >= _FUSED_FROM


def guarded_adamw(
    config: UpdateConfig, *parts: tuple[Sequence[torch.nn.Parameter], float]
) -> GuardedOptimizer:
    """AdamW as the settings want it.

    Args:
        config: warm-up, weight decay and the largest norm of a gradient.
        parts: weights, and the learning rate of each part of them.
    """
    adamw = torch.optim.AdamW(
        [{"params": list(weights), "lr": lr} for weights, lr in parts],
        weight_decay=config.weight_decay,
        fused=fuses(weight for weights, _ in parts for weight in weights),
    )
    return GuardedOptimizer(
        adamw, max_grad_norm=config.max_grad_norm, warmup_steps=config.lr_warmup_steps
    )


def decayed(config: UpdateConfig, spent: float) -> float:
    """Share of the learning rate that is left.

    Args:
        config: how it decays; with ``lr_decay = "none"`` all of it is left.
        spent: share of the run's budget that is spent; what is over 1 counts as 1.

    Returns:
        ``floor + (1 - floor) * f``, with ``f = 1 - spent`` in a straight line and
        ``f = (1 + cos(pi * spent)) / 2`` by half a cosine (Loshchilov and Hutter, 2017, Eq. 5,
        without restarts).
    """
    if config.lr_decay == "none":
        return 1.0
    spent = min(1.0, max(0.0, spent))
    left = 1.0 - spent if config.lr_decay == "linear" else (1.0 + math.cos(math.pi * spent)) / 2.0
    return config.lr_floor + (1.0 - config.lr_floor) * left


class GuardedOptimizer:
    """An optimiser that skips a step whose loss or gradient is not finite.

    One such step would make every weight NaN. Skipped, it costs its batch; the weights and the
    optimiser's averages stay as they are. Three in a row are no accident, and raise an error.

    Args:
        inner: the optimiser; its learning rate is the one to reach.
        max_grad_norm: the gradient's norm is clipped there; None for no clipping.
        warmup_steps: steps over which the learning rate rises in a straight line to its own,
            which the last of them has; it stays there. 0 for none.

    Attributes:
        decay: share of the learning rate that the next steps have.
        steps: steps taken; skipped ones are not among them.
        nonfinite_steps: steps skipped since this was made.
        nonfinite_in_a_row: steps skipped since the latest one taken.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, *, max_grad_norm: float | None, warmup_steps: int = 0
    ) -> None:
        self._inner = inner
        self._rates: list[float] = [group["lr"] for group in inner.param_groups]
        self._max_grad_norm, self._warmup_steps = max_grad_norm, warmup_steps
        self.decay = 1.0
        self.steps = self.nonfinite_steps = self.nonfinite_in_a_row = 0

    @property
    def lr(self) -> float:
        """Learning rate of the latest step; before the first, the one to reach."""
        return float(self._inner.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._inner.zero_grad(set_to_none=True)

    def step(self, loss: float) -> float | None:
        """Change the weights by their gradients, or skip that.

        Args:
            loss: what the gradients are of.

        Returns:
            The gradient's norm before it is clipped; None if the step was skipped.

        Raises:
            TrainingDiverged: if this is the third in a row to be skipped.
        """
        weights = [weight for group in self._inner.param_groups for weight in group["params"]]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            self._skip(loss, norm.item())
            return None
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(weights, self._max_grad_norm, norm)
        self.steps += 1
        share = min(1.0, self.steps / max(1, self._warmup_steps)) * self.decay
        for group, rate in zip(self._inner.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        self._inner.step()
        self.nonfinite_in_a_row = 0
        return norm.item()

    def _skip(self, loss: float, norm: float) -> None:
        self.zero_grad()
        self.nonfinite_steps += 1
        self.nonfinite_in_a_row += 1
        told = f"loss={loss:.4g} gradient norm={norm:.4g}"
        _LOG.warning("step of the optimiser skipped, not finite: %s", told)
        if self.nonfinite_in_a_row >= MAX_NONFINITE_IN_A_ROW:
            raise TrainingDiverged(
                f"{self.nonfinite_in_a_row} steps of the optimiser in a row were not finite, the "
                f"last with {told}. The weights are those before them. Train anew with a lower "
                "learning rate or a longer warm-up of it, and look for infinite or missing "
                "numbers in log-probabilities and scores."
            )

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser, on the CPU, and counters."""
        return {
            "optimizer": _on_cpu(self._inner.state_dict()),
            "steps": self.steps,
            "nonfinite_in_a_row": self.nonfinite_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`; counters that an older version did not save are 0."""
        self._inner.load_state_dict(state["optimizer"])
        self.steps = int(state.get("steps", 0))
        self.nonfinite_in_a_row = int(state.get("nonfinite_in_a_row", 0))
        return self


def _on_cpu(state: Any) -> Any:
    """A copy of nested values with every tensor on the CPU: a GPU has no room for two."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(_on_cpu, state))
    return state
