"""Samples as verl's engine reads them: each number stands before the token that it is about.

verl takes the log-probability at a position for that of the next token, and its masks likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import Segment
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.settings import GRPOConfig
from coevo_gym.trainers.update.batch import Batch

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"verl needs PyTorch. {extra_advice('train')}.") from error


class Row(NamedTuple):
    """One segment, up to the last token that was sampled; n of them were.

    Attributes:
        ids: its tokens.
        at: (n,) positions before the sampled tokens.
        advantage: (n,) of the sampled tokens.
        recorded: (n,) their log-probabilities under the sampler.
        temperature: it was sampled at.
        weight: of its positions in the loss.
        clip_high: upper clip of its ratios.
        stripped: whether the sampler was told cues that the ids do not hold.
    """

    ids: tuple[int, ...]
    at: Tensor
    advantage: Tensor
    recorded: Tensor
    temperature: float
    weight: float
    clip_high: float
    stripped: bool


class Work(NamedTuple):
    """An update, as all workers are told it.

    Attributes:
        config: how to learn.
        orders: the rows of each step of the optimiser.
        total: what the loss of a step is divided by.
        decay: share of the learning rate that is left.
        steps: steps that the optimiser has taken before.
        nonfinite_in_a_row: steps that it has skipped since.
    """

    config: GRPOConfig
    orders: Sequence[Sequence[int]]
    total: float
    decay: float
    steps: int
    nonfinite_in_a_row: int


def rows_of(batch: Batch, weight: Tensor, clip_high: float) -> list[Row]:
    """The samples of a batch.

    Args:
        batch: what is learned from.
        weight: (D,) of each sample's positions.
        clip_high: upper clip where the batch holds none of its own.

    Raises:
        ConfigError: if a sample is no segment of tokens.
    """
    rows = []
    for i, sample in enumerate(batch.samples):
        if not isinstance(sample, Segment):
            raise ConfigError(
                "verl's workers learn from segments of tokens of a language model, actual: "
                f"{type(sample).__name__}."
            )
        sampled = np.flatnonzero(sample.sampled)
        rows.append(
            Row(
                sample.ids[: int(sampled[-1]) + 1],
                torch.from_numpy(sampled - 1),
                batch.advantage[i].float(),
                batch.recorded[i].float(),
                sample.temperature,
                float(weight[i]),
                clip_high if batch.clip_high is None else float(batch.clip_high[i]),
                bool(batch.stripped[i]),
            )
        )
    return rows


def shares(rows: Sequence[int], lengths: Sequence[int], n: int) -> list[list[int]]:
    """Deal rows out to ``n`` workers, about the same number of tokens to each.

    Args:
        rows: which rows.
        lengths: tokens of every row there is.
        n: workers.

    Returns:
        The rows of each worker; they differ by one row at most, and none is left out.
    """
    longest_first = sorted(rows, key=lambda row: (-lengths[row], row))
    dealt: list[list[int]] = [[] for _ in range(n)]
    for place, row in enumerate(longest_first):
        there_and_back = place % (2 * n)
        dealt[min(there_and_back, 2 * n - 1 - there_and_back)].append(row)
    return dealt


def nested(rows: Sequence[Row], values: Mapping[str, Sequence[Tensor]], least: int) -> Any:
    """Some rows as verl takes a batch.

    Args:
        rows: the rows of one worker.
        values: more numbers by name, (n,) for each row.
        least: so many rows at least; those that are missing teach nothing. The workers of a step
            need the same number.

    Returns:
        A ``TensorDict``: of every field a jagged tensor with one number for each position, 0 but
        before sampled tokens; ``temperature`` (B,).
    """
    from tensordict import TensorDict

    filled = [*rows, *[_EMPTY] * (least - len(rows))]
    none = torch.zeros(0)
    fields: dict[str, list[Tensor]] = {
        "input_ids": [torch.tensor(row.ids) for row in filled],
        "position_ids": [torch.arange(len(row.ids)) for row in filled],
    }
    numbers: dict[str, list[Tensor]] = {
        "loss_mask": [torch.ones(len(row.at)) for row in filled],
        "advantages": [row.advantage for row in filled],
        "recorded": [row.recorded for row in filled],
        "weight": [torch.full((len(row.at),), row.weight) for row in filled],
        "clip_high": [torch.full((len(row.at),), row.clip_high) for row in filled],
        "stripped": [torch.full((len(row.at),), float(row.stripped)) for row in filled],
    }
    for name, given in values.items():
        numbers[name] = [*given, *[none] * (least - len(rows))]
    for name, parts in numbers.items():
        fields[name] = [
            torch.zeros(len(row.ids)).index_copy(0, row.at, part.float())
            for row, part in zip(filled, parts, strict=True)
        ]
    jagged = {
        name: torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        for name, parts in fields.items()
    }
    batch = TensorDict(jagged, batch_size=len(filled))
    batch["temperature"] = torch.tensor([row.temperature for row in filled])
    return batch


_EMPTY = Row(
    (0, 0), torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(0), 1.0, 0.0, 0.0, False
)
