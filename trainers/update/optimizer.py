"""A moving average of weights, and an optimiser with warm-up that skips non-finite steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from coevo_gym.core.errors import ConfigError, TrainingDiverged
from coevo_gym.trainers.settings import OFFLOAD_NEEDS_GPU, OptimizerName, UpdateConfig
from coevo_gym.trainers.update.ranks import current_ranks, full_tensor, whole_cpu_copy

_LOG = logging.getLogger(__name__)
MAX_NONFINITE_IN_A_ROW = 3
"""Number of consecutive non-finite optimiser steps that abort training."""


def guarded_adamw(
    config: UpdateConfig, *parts: tuple[Sequence[torch.nn.Parameter], float]
) -> GuardedOptimizer:
    """Create the optimiser for an update, for parameter groups with their own learning rates.

    Raises:
        ConfigError, ImportError: see :func:`make_adamw`.
    """
    adamw = make_adamw(config.optimizer, *parts, weight_decay=config.weight_decay)
    return GuardedOptimizer(
        adamw, max_grad_norm=config.max_grad_norm, warmup_steps=config.lr_warmup_steps
    )


def make_adamw(
    name: OptimizerName,
    *parts: tuple[Sequence[torch.nn.Parameter], float],
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Create an AdamW optimiser for parameter groups with their own learning rates.

    Adam's fused kernel takes a quarter of the time on a CPU and avoids temporary copies on a GPU.
    Its square roots are exact; MKL's, which the other kernels use, start from an approximation that
    differs between the processors of AMD and Intel.

    Raises:
        ConfigError: if moments are to be offloaded to main memory, but the weights are there, too.
        ImportError: if the optimiser needs torchao, which is not installed.
    """
    groups = [{"params": list(weights), "lr": lr} for weights, lr in parts]
    if name == "adamw_8bit":
        from coevo_gym.trainers.update.adamw_8bit import EightBitAdamW

        return EightBitAdamW(groups, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    if all(weight.device.type == "cpu" for weights, _ in parts for weight in weights):
        raise ConfigError(OFFLOAD_NEEDS_GPU)
    return OffloadedAdamW(groups, weight_decay=weight_decay)


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW with its moments in main memory.

    A step moves the moments of one weight tensor at a time to the tensor's device and back, so they
    need no memory on the device between steps. The results equal those of AdamW's fused kernel on
    that device.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], *, weight_decay: float) -> None:
        super().__init__([dict(group) for group in groups], weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights that have a gradient."""
        groups = self.param_groups
        try:
            for group in groups:
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    self.param_groups = [{**group, "params": [weight]}]
                    with _moments_on_device(self.state[weight], weight.device):
                        super().step()
        finally:
            self.param_groups = groups

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state from ``state_dict()``; the moments stay in main memory."""
        saved = state_dict["state"]
        super().load_state_dict({**state_dict, "state": {}})
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, values in saved.items():
            weight = weights[index]
            moments = {name: _in_main_memory(values[name], weight.device) for name in _MOMENTS}
            self.state[weight] = {"step": values["step"].to(weight.device), **moments}


_MOMENTS = ("exp_avg", "exp_avg_sq")


@contextmanager
def _moments_on_device(state: dict[str, Tensor], device: torch.device) -> Iterator[None]:
    """Keep a weight's moments on a device for a ``with`` block, then move them to main memory."""
    moments = {name: state[name] for name in _MOMENTS if name in state}
    state.update({name: value.to(device) for name, value in moments.items()})
    yield
    for name in _MOMENTS:
        if name in moments:
            state[name] = moments[name].copy_(state[name])
        else:
            state[name] = _in_main_memory(state[name], device)


def _in_main_memory(moment: Tensor, device: torch.device) -> Tensor:
    """Return a copy in main memory, pinned so that it reaches a GPU faster."""
    copy = torch.empty_like(moment, device="cpu", pin_memory=device.type == "cuda")
    return copy.copy_(moment)


def lr_decay_factor(config: UpdateConfig, spent: float) -> float:
    """Return the learning-rate factor after the given share of the budget has been spent.

    It is ``floor + (1 - floor) * f``, with ``f = 1 - spent`` for linear decay and
    ``f = (1 + cos(pi * spent)) / 2`` for half a cosine (Loshchilov and Hutter, 2017, Eq. 5, without
    restarts); 1 for no decay. Values above 1 count as 1.
    """
    if config.lr_decay == "none":
        return 1.0
    spent = min(1.0, max(0.0, spent))
    left = 1.0 - spent if config.lr_decay == "linear" else (1.0 + math.cos(math.pi * spent)) / 2.0
    return config.lr_floor + (1.0 - config.lr_floor) * left


class GuardedOptimizer:
    """An optimiser that skips steps with a non-finite loss or gradient.

    A single such step would make every weight NaN. Skipping it leaves the weights and the
    optimiser's averages unchanged and wastes only its batch. Three skipped steps in a row raise an
    error. The learning rate of ``inner`` is the target of a linear warm-up over the first steps. A
    ``max_grad_norm`` of None disables clipping.

    Attributes:
        decay: share of the learning rate to use in the next steps.
        steps: number of steps taken, excluding skipped steps.
        nonfinite_steps: number of steps skipped by this object.
        nonfinite_in_a_row: number of steps skipped since the last step taken.
    """

    def __init__(
        self, inner: torch.optim.Optimizer, *, max_grad_norm: float | None, warmup_steps: int = 0
    ) -> None:
        self._inner = inner
        self._rates: list[float] = [float(group["lr"]) for group in inner.param_groups]
        self._max_grad_norm, self._warmup_steps = max_grad_norm, warmup_steps
        self.decay = 1.0
        self.steps = self.nonfinite_steps = self.nonfinite_in_a_row = 0

    @property
    def lr(self) -> float:
        """Learning rate of the latest step, or the target learning rate before the first step."""
        return float(self._inner.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self._inner.zero_grad(set_to_none=True)

    def step(self, loss: float) -> float | None:
        """Update the weights, or skip the step if the loss or a gradient is non-finite.

        Gradients are first summed over all ranks; ``loss`` must be the sum already.

        Returns:
            The gradient's norm before clipping; None if the step was skipped.

        Raises:
            TrainingDiverged: if this is the third skipped step in a row.
        """
        weights = [weight for group in self._inner.param_groups for weight in group["params"]]
        current_ranks().sum_gradients(weights)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            self._skip_step_or_raise(loss, norm.item())
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

    def _skip_step_or_raise(self, loss: float, norm: float) -> None:
        self.zero_grad()
        self.nonfinite_steps += 1
        self.nonfinite_in_a_row += 1
        numbers = f"loss={loss:.4g} gradient norm={norm:.4g}"
        _LOG.warning("optimiser step skipped, not finite: %s", numbers)
        if self.nonfinite_in_a_row >= MAX_NONFINITE_IN_A_ROW:
            raise TrainingDiverged(
                f"{self.nonfinite_in_a_row} optimiser steps in a row had a non-finite loss or "
                f"gradient (last step: {numbers}). The weights from before these steps are kept. "
                "Retry with a lower learning rate or a longer warm-up, and check log-probabilities "
                "and scores for inf or NaN."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the optimiser state, with tensors copied to the CPU."""
        return {
            "optimizer": _copy_to_cpu(self._inner.state_dict()),
            "steps": self.steps,
            "nonfinite_in_a_row": self.nonfinite_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`."""
        self._inner.load_state_dict(state["optimizer"])
        self.steps = int(state["steps"])
        self.nonfinite_in_a_row = int(state["nonfinite_in_a_row"])
        return self


def _copy_to_cpu(state: Any) -> Any:
    """Copy nested values to the CPU, since GPU memory may not hold two copies."""
    if isinstance(state, Tensor):
        return whole_cpu_copy(state)
    if isinstance(state, Mapping):
        return {key: _copy_to_cpu(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(_copy_to_cpu, state))
    return state


class Averageable(Protocol):
    """A policy whose weights can be averaged."""

    version: int

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the weights being trained."""
        ...


class AveragedWeights:
    """The exponential moving average of a policy's weights over its updates.

    It is initialised with the policy's current weights. Each update computes ``average = decay *
    average + (1 - decay) * weights`` (Polyak and Juditsky, 1992, here with exponentially decreasing
    weights). It needs as much memory as the trained weights. ``decay`` is in (0, 1).
    """

    def __init__(self, policy: Averageable, decay: float) -> None:
        self._policy, self._decay = policy, decay
        self._average = [weight.detach().clone() for weight in policy.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        for average, weight in zip(self._average, self._policy.parameters(), strict=True):
            average.lerp_(weight.detach(), 1.0 - self._decay)

    @contextmanager
    def use_in_policy(self) -> Iterator[None]:
        """Use the averaged weights in a ``with`` block, then restore the policy's own weights."""
        version = self._policy.version
        own = [weight.detach().clone() for weight in self._policy.parameters()]
        load_weights(self._policy, self._average)
        # Samplers with a copy of the weights reload it when the version changes. A policy that
        # is trained has a version of at least 0, and -1 means unknown, so use values below -1.
        self._policy.version = -2 - version
        try:
            yield
        finally:
            load_weights(self._policy, own)
            self._policy.version = version

    def state(self) -> list[Tensor]:
        """Return CPU copies of the averaged weights."""
        return [average.to("cpu", copy=True) for average in self._average]

    def load(self, state: Sequence[Tensor]) -> None:
        """Restore averaged weights from :meth:`state`."""
        for average, saved in zip(self._average, state, strict=True):
            average.copy_(saved)


@torch.no_grad()
def load_weights(policy: Averageable, weights: Sequence[Tensor]) -> None:
    """Load weights into a policy, in the order of its parameters."""
    for own, weight in zip(policy.parameters(), weights, strict=True):
        own.copy_(weight)
