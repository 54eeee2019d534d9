"""Ranks: processes that share each weight update.

All ranks run the same update on the same batch. Each computes its share of the samples, and
gradients, metrics and log-probabilities are combined over all ranks. The loss is always divided by
the size of the whole batch, so the update equals that of one process up to rounding.

A process is alone until it calls :func:`join_ranks`. For a process alone, the methods of
:class:`Ranks` have nothing to combine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from coevo_gym.core.errors import CoevoError

T = TypeVar("T")
_LONGEST_WAIT = timedelta(days=365)
"""Time for which a rank waits for the next command of rank 0, which may be sampling until then."""


class RankLost(CoevoError):
    """A rank cannot reach the other ranks, usually because one of them has died."""


class Microbatch(NamedTuple):
    """Samples of one forward pass.

    Attributes:
        rows: (B,) indices of the samples.
        weight: factor of their loss: 1, or 0 for a pass that only keeps pace with the other ranks.
    """

    rows: NDArray[np.int64]
    weight: float


def split_rows(
    rows: NDArray[np.int64], tokens: NDArray[np.int64], most: int
) -> list[NDArray[np.int64]]:
    """Split ``rows`` into chunks of up to ``most`` tokens. A longer row becomes its own chunk."""
    cuts, inside = [], 0
    for place, row in enumerate(rows):
        if inside and inside + tokens[row] > most:
            cuts.append(place)
            inside = 0
        inside += int(tokens[row])
    return np.split(rows, cuts)


class Ranks:
    """The ranks that this process is one of. This base class is for a process alone.

    Attributes:
        rank: number of this process; rank 0 runs the training loop.
        size: number of processes.
    """

    rank, size = 0, 1

    def share_rows(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], most: int
    ) -> list[Microbatch]:
        """Return the microbatches of this rank's share of the samples.

        Args:
            rows: indices of the samples to distribute, ascending.
            tokens: (D,) tokens of each sample of the batch.
            most: maximum tokens of a microbatch; a longer sample gets its own.
        """
        return [Microbatch(part, 1.0) for part in split_rows(rows, tokens, most) if len(part)]

    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Replace each weight's gradient by its sum over all ranks."""

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Return the sum of each number over all ranks, which pass the same names."""
        return dict(numbers)

    def merge(self, values: dict[int, T]) -> dict[int, T]:
        """Return the values of all ranks."""
        return values

    def agree(self, value: bool) -> bool:
        """Return the value that rank 0 passes."""
        return value


class RankGroup(Ranks):
    """Several ranks, one per process of ``torch.distributed``'s default group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._commands = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT)

    def share_rows(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], most: int
    ) -> list[Microbatch]:
        """Return the microbatches of this rank's share of the samples.

        Samples are dealt by length, so that the shares have about the same number of tokens. All
        ranks get the same number of microbatches, because each pass may gather sharded weights from
        all ranks. A rank with fewer repeats the shortest sample with a weight of 0.
        """
        if not len(rows):
            return []
        by_length = rows[np.argsort(-tokens[rows], kind="stable")]
        shares = [np.sort(by_length[rank :: self.size]) for rank in range(self.size)]
        parts = [super(RankGroup, self).share_rows(share, tokens, most) for share in shares]
        mine = parts[self.rank]
        n_missing = max(map(len, parts)) - len(mine)
        return [*mine, *[Microbatch(by_length[-1:], 0.0)] * n_missing]

    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Replace each weight's gradient by its sum over all ranks.

        A weight without a gradient on any rank gets none. FSDP has already summed the gradients of
        sharded weights.
        """
        replicated = [weight for weight in weights if not isinstance(weight, DTensor)]
        has_gradient = torch.tensor([weight.grad is not None for weight in replicated]).byte()
        dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX)
        pending = []
        for weight, is_needed in zip(replicated, has_gradient.tolist(), strict=True):
            if is_needed:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                pending.append(dist.all_reduce(weight.grad, async_op=True))
        for work in pending:
            work.wait()

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Return the sum of each number over all ranks, which pass the same names."""
        names = sorted(numbers)
        sums = torch.tensor([numbers[name] for name in names], dtype=torch.float64)
        dist.all_reduce(sums)
        return dict(zip(names, sums.tolist(), strict=True))

    def merge(self, values: dict[int, T]) -> dict[int, T]:
        """Return the values of all ranks."""
        parts: list[dict[int, T]] = [{} for _ in range(self.size)]
        dist.all_gather_object(parts, values, group=self._commands)
        return {key: value for part in parts for key, value in part.items()}

    def agree(self, value: bool) -> bool:
        """Return the value that rank 0 passes."""
        return self.broadcast(value)

    def broadcast(self, value: T) -> T:
        """Return the object that rank 0 passes, which must be picklable."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]

    def broadcast_state(
        self, state: Any, place: Callable[[tuple[Any, ...], Tensor], Tensor]
    ) -> Any:
        """Return rank 0's nested state, whose tensors are sent one at a time.

        Args:
            state: nested mappings and lists with CPU tensors on rank 0; ignored on other ranks.
            place: function that returns what to keep of a tensor, given its keys in the state.
        """
        tensors: list[Tensor] = []
        skeleton = self.broadcast(_replace_tensors(state, tensors) if self.rank == 0 else None)

        def receive(value: Any, keys: tuple[Any, ...]) -> Any:
            if isinstance(value, _TensorShape):
                if self.rank == 0:
                    tensor = tensors[value.number].contiguous()
                else:
                    tensor = torch.empty(value.shape, dtype=value.dtype)
                dist.broadcast(tensor, src=0)
                return place(keys, tensor)
            if isinstance(value, dict):
                return {key: receive(one, (*keys, key)) for key, one in value.items()}
            if isinstance(value, list):
                return [receive(one, (*keys, i)) for i, one in enumerate(value)]
            return value

        return receive(skeleton, ())


class _TensorShape(NamedTuple):
    """A place holder for a tensor that is sent separately."""

    number: int
    shape: torch.Size
    dtype: torch.dtype


def _replace_tensors(state: Any, tensors: list[Tensor]) -> Any:
    """Return a nested state with place holders for its tensors, which are appended to a list."""
    if isinstance(state, Tensor):
        tensors.append(state)
        return _TensorShape(len(tensors) - 1, state.shape, state.dtype)
    if isinstance(state, Mapping):
        return {key: _replace_tensors(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [_replace_tensors(value, tensors) for value in state]
    return state


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor, or the whole of a sharded one. All ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_cpu_copy(tensor: Tensor) -> Tensor:
    """Return a CPU copy of a tensor, or the whole of a sharded one.

    All ranks must call this together. To save memory, ranks other than 0 get an empty tensor in
    place of a sharded one.
    """
    whole = full_tensor(tensor).detach()
    if isinstance(tensor, DTensor) and _ranks.rank:
        return torch.empty(0)
    return whole.to("cpu", copy=True)


def shard_like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor, or this rank's shard of it if ``weight``, of the same shape, is sharded."""
    if not isinstance(weight, DTensor):
        return tensor
    # Every rank has the whole tensor, so nothing is sent.
    return distribute_tensor(
        tensor.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None
    )


_ALONE = Ranks()
_ranks: Ranks = _ALONE


def current_ranks() -> Ranks:
    """Return the ranks that this process has joined, or a group of its own."""
    return _ranks


@contextmanager
def join_ranks(device: torch.device) -> Iterator[RankGroup]:
    """Join the other ranks for a ``with`` block, with the variables that torchrun sets.

    Args:
        device: device of the model: a GPU, for NCCL, or the CPU, for gloo.

    Raises:
        RankLost: if a collective operation in the block fails.
    """
    global _ranks
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend)
        _ranks = group = RankGroup()
        yield group
        dist.destroy_process_group()
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        raise RankLost(f"Rank {os.environ['RANK']} has lost the others ({error}).") from error
    finally:
        _ranks = _ALONE


def _is_connection_error(error: RuntimeError) -> bool:
    """Return True for errors of a collective operation whose other ranks cannot be reached."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
