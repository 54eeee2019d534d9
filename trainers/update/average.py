"""A moving average of the weights under training, to evaluate and to keep."""

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
    """A policy whose weights can be averaged; all that learners train are such."""

    version: int

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The weights under training."""
        ...


class AveragedWeights:
    """The exponential moving average of a policy's weights over its updates.

    It begins as the weights that the policy has now, and each update moves it:
    ``average = decay * average + (1 - decay) * weights`` (Polyak and Juditsky, 1992, here with
    exponentially falling weights). It takes as much memory as the weights under training.

    Args:
        policy: whose weights.
        decay: share of the average that an update leaves, in (0, 1).
    """

    def __init__(self, policy: Averageable, decay: float) -> None:
        self._policy, self._decay = policy, decay
        self._average = [weight.detach().clone() for weight in policy.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights as they are now."""
        for average, weight in zip(self._average, self._policy.parameters(), strict=True):
            average.lerp_(weight.detach(), 1.0 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A scope in which the policy has the averaged weights; after it, its own again."""
        version = self._policy.version
        own = [weight.detach().clone() for weight in self._policy.parameters()]
        put(self._policy, self._average)
        # Who samples from a copy of the weights renews it where the version is another. That of a
        # policy under training is 0 or more, and -1 stands for an unknown one.
        self._policy.version = -2 - version
        try:
            yield
        finally:
            put(self._policy, own)
            self._policy.version = version

    def state(self) -> list[Tensor]:
        """The average, on the CPU; :meth:`load` reads it back."""
        return [average.to("cpu", copy=True) for average in self._average]

    def load(self, state: Sequence[Tensor]) -> None:
        """Restore :meth:`state`."""
        for average, saved in zip(self._average, state, strict=True):
            average.copy_(saved)


def averaged(policy: Averageable, decay: float) -> AveragedWeights | None:
    """The average that a learner's settings ask for; None where ``decay`` is 0."""
    return AveragedWeights(policy, decay) if decay else None


@torch.no_grad()
def put(policy: Averageable, weights: Sequence[Tensor]) -> None:
    """Give a policy these weights, in the order of its parameters."""
    for own, given in zip(policy.parameters(), weights, strict=True):
        own.copy_(given)
