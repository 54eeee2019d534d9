"""A moving average of the trained weights, for evaluation and for saving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from coevo_gym.provision import extra_advice

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"Training needs PyTorch. {extra_advice('train')}.") from error


class Averageable(Protocol):
    """A policy whose weights can be averaged, such as any policy a learner trains."""

    version: int

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the weights under training."""
        ...


class AveragedWeights:
    """The exponential moving average of a policy's weights over its updates.

    It is initialised with the policy's current weights. Each update computes
    ``average = decay * average + (1 - decay) * weights`` (Polyak and Juditsky, 1992, here with
    exponentially decreasing weights). It needs as much memory as the trained weights.

    Args:
        policy: policy whose weights are averaged.
        decay: share of the old average kept in an update, in (0, 1).
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
    def in_place(self) -> Iterator[None]:
        """Load the averaged weights into the policy within a context, then restore its own."""
        version = self._policy.version
        own = [weight.detach().clone() for weight in self._policy.parameters()]
        put(self._policy, self._average)
        # Samplers with a copy of the weights reload it when the version changes. A policy under
        # training has a version of 0 or more, and -1 means unknown, so use values below -1.
        self._policy.version = -2 - version
        try:
            yield
        finally:
            put(self._policy, own)
            self._policy.version = version

    def state(self) -> list[Tensor]:
        """Return the average, on the CPU."""
        return [average.to("cpu", copy=True) for average in self._average]

    def load(self, state: Sequence[Tensor]) -> None:
        """Restore :meth:`state`."""
        for average, saved in zip(self._average, state, strict=True):
            average.copy_(saved)


def averaged(policy: Averageable, decay: float) -> AveragedWeights | None:
    """Create the average that a learner's settings ask for; None if ``decay`` is 0."""
    return AveragedWeights(policy, decay) if decay else None


@torch.no_grad()
def put(policy: Averageable, weights: Sequence[Tensor]) -> None:
    """Load weights into a policy, in the order of its parameters."""
    for own, given in zip(policy.parameters(), weights, strict=True):
        own.copy_(given)
