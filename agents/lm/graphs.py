"""Decoding with CUDA graphs: one launch per token instead of hundreds of kernel launches.

A graph repeats recorded kernels on fixed memory. Rows are therefore decoded in a memory with fixed
places, where each row has its own length and joins or leaves at any step. A graph is recorded for
each number of places and slots that is needed. Import this module lazily: it requires PyTorch and
transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from coevo_gym.agents.lm.cached_attention import draw_tokens, next_logits_in_slots
from coevo_gym.agents.lm.prefix_cache import KeysAndValues, SequenceCache

logger = logging.getLogger(__name__)

_MIN_SLOTS = 256
_GPU_SHARE = 0.5


class DecodedRow(Protocol):
    """A token sequence in a batch, whose last token is still to be processed.

    Attributes:
        cache: keys and values of the tokens before it; None while they are in a decoder's memory.
        n_processed: number of these tokens.
        last_id: id of the token.
        temperature: divisor of the logits; 0 samples greedily.
        uniform: number in [0, 1) for the next draw.
    """

    cache: SequenceCache | None
    n_processed: int

    @property
    def last_id(self) -> int: ...  # noqa: D102
    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def uniform(self) -> float: ...  # noqa: D102


class Drawn(NamedTuple):
    """The next tokens of rows, their log-probabilities, and the number of rows with padding."""

    ids: list[int]
    logprobs: list[float]
    n_padded: int


@dataclass
class GraphCounts:
    """Counts of a decoder's work so far.

    Attributes:
        captures: CUDA graphs recorded.
        capture_s: wall time of recording, in seconds.
        declined: batches decoded without the decoder, because memory was short.
    """

    captures: int = 0
    capture_s: float = 0.0
    declined: int = 0


class GraphDecoder:
    """A decoder that records a CUDA graph for each batch size and replays it for every token.

    Rows join a batch in any order. The memory grows when more or longer rows join; all graphs are
    then recorded again. If the weights are changed in place, the graphs stay valid. On a CPU, the
    same steps run without graphs.

    Args:
        model: model in evaluation mode.

    Attributes:
        model: the model.
        counts: see :class:`GraphCounts`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.counts = GraphCounts()
        self._memory: KeysAndValues = ()  # of each layer, (places, heads, slots, width)
        self._places: dict[int, int] = {}  # id of a row -> its place
        self._rows: dict[int, DecodedRow] = {}  # by place
        self._steps: dict[tuple[int, int], tuple[_Step, Callable[[], None]]] = {}
        self._pool: Any = None
        self._works = True
        self._warned_of: set[str] = set()

    @property
    def n_bytes(self) -> int:
        """Size of the decoder's memory in bytes."""
        return sum(part.nbytes for pair in self._memory for part in pair)

    def draw_tokens(self, rows: Sequence[DecodedRow]) -> Drawn | None:
        """Process the last token of each row, and draw the next one.

        Rows with a cache are moved into the decoder's memory; the others must be in it already.
        Rows in the memory that are not given get a cache again.

        Returns:
            The tokens, or None if there is not enough memory; nothing has then changed.

        Raises:
            torch.OutOfMemoryError: if memory runs out in spite of the check; call :meth:`free`.
        """
        wanted = {id(row) for row in rows}
        for row in [row for row in self._rows.values() if id(row) not in wanted]:
            self.take_out(row)
        if not self._make_room(rows):
            return None
        self._fill_gaps(rows)
        for row in rows:
            if row.cache is not None:
                self._load(row)
        places = [self._places[id(row)] for row in rows]
        size = 1 << max(places).bit_length(), self._n_slots(rows)
        step, run = self._get_or_capture_step(size)
        inputs = np.zeros((4, size[0]))
        for row, place in zip(rows, places, strict=True):
            inputs[:, place] = row.last_id, row.n_processed, row.temperature, row.uniform
        step.inputs.copy_(torch.from_numpy(inputs))
        run()
        for row in rows:
            row.n_processed += 1
        ids, logprobs = step.outputs.tolist()
        return Drawn(
            [int(ids[place]) for place in places], [logprobs[place] for place in places], size[0]
        )

    def layers_of(self, row: DecodedRow) -> KeysAndValues:
        """Return the keys and values of a row in the memory."""
        place, n = self._places[id(row)], row.n_processed
        return [(keys[place, :, :n], values[place, :, :n]) for keys, values in self._memory]

    def take_out(self, row: DecodedRow) -> None:
        """Move a row's keys and values from the memory to a cache of its own."""
        row.cache = SequenceCache.copy_of(self.layers_of(row), row.n_processed)
        self.drop(row)

    def drop(self, row: DecodedRow) -> None:
        """Remove a row from the memory, if it is in it."""
        place = self._places.pop(id(row), None)
        if place is not None:
            del self._rows[place]

    def free(self) -> None:
        """Drop the memory, all graphs and all rows, whose keys and values are lost."""
        self._steps.clear()
        self._memory, self._pool = (), None  # a pool ends with its graphs
        self._places.clear()
        self._rows.clear()

    def _make_room(self, rows: Sequence[DecodedRow]) -> bool:
        """Grow the memory if these rows do not fit; return False if there is too little memory."""
        n_places = 1 << (len(rows) - 1).bit_length()
        n_slots = self._n_slots(rows)
        like: KeysAndValues
        if self._memory:
            places, _, slots, _ = self._memory[0][0].shape
            if n_places <= places and n_slots <= slots:
                return True
            n_places, n_slots = max(n_places, places), max(n_slots, slots)
            like = [(keys[0], values[0]) for keys, values in self._memory]
        else:
            assert rows[0].cache is not None
            like = rows[0].cache.layers
        shapes = [
            [(n_places, part.shape[0], n_slots, part.shape[2]) for part in pair] for pair in like
        ]
        itemsize, device = like[0][0].dtype.itemsize, like[0][0].device
        needed = itemsize * sum(prod(shape) for pair in shapes for shape in pair)
        usable = usable_bytes(device) + self.n_bytes // 2 if device.type == "cuda" else needed
        if needed > usable:
            self._warn_once(
                "memory",
                f"the keys and values of {n_places} rows of {n_slots} tokens need "
                f"{needed / 2**30:.1f} GiB, and {usable / 2**30:.1f} GiB are usable; a lower "
                "rollout.max_envs needs less",
            )
            self.counts.declined += 1
            return False
        for row in list(self._rows.values()):
            self.take_out(row)
        self.free()
        self._memory = [  # of zeros, because masked slots must be finite
            (keys.new_zeros(of_keys), values.new_zeros(of_values))
            for (keys, values), (of_keys, of_values) in zip(like, shapes, strict=True)
        ]
        return True

    def _n_slots(self, rows: Sequence[DecodedRow]) -> int:
        """Return the number of slots with which these rows have room for one more token."""
        return max(_MIN_SLOTS, padded_size(max(row.n_processed for row in rows) + 1))

    def _fill_gaps(self, rows: Sequence[DecodedRow]) -> None:
        """Move rows down to lower places if fewer places would then suffice."""
        size = 1 << (len(rows) - 1).bit_length()
        free = (place for place in range(size) if place not in self._rows)
        for place in sorted(place for place in self._rows if place >= size):
            row, target = self._rows.pop(place), next(free)
            for part in (part for pair in self._memory for part in pair):
                part[target, :, : row.n_processed] = part[place, :, : row.n_processed]
            self._rows[target], self._places[id(row)] = row, target

    def _load(self, row: DecodedRow) -> None:
        place = next(place for place in range(len(self._memory[0][0])) if place not in self._rows)
        assert row.cache is not None
        for mine, theirs in zip(self._memory, row.cache.layers, strict=True):
            for memory, part in zip(mine, theirs, strict=True):
                memory[place, :, : part.shape[1]] = part
        row.cache = None
        self._rows[place], self._places[id(row)] = row, place

    def _get_or_capture_step(self, size: tuple[int, int]) -> tuple[_Step, Callable[[], None]]:
        if size not in self._steps:
            n, slots = size
            layers = [(keys[:n, :, :slots], values[:n, :, :slots]) for keys, values in self._memory]
            step = _Step(partial(next_logits_in_slots, self.model), layers)
            self._steps[size] = step, self._capture(step)
        return self._steps[size]

    def _capture(self, step: _Step) -> Callable[[], None]:
        """Record a decoding step in a CUDA graph; return a function that runs the step."""
        if step.inputs.device.type != "cuda" or not self._works:
            return step.run
        began = perf_counter()
        try:
            graph = self._record(step)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._works = False
            self._warn_once("capture", str(error).split("\n")[0])
            return step.run
        self.counts.captures += 1
        self.counts.capture_s += perf_counter() - began
        replay: Callable[[], None] = graph.replay
        return replay

    def _record(self, step: _Step) -> Any:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        half = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        # Weights that autocast has converted before would not change with the weights.
        with torch.autocast("cuda", *half, cache_enabled=False):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step.run()  # libraries allocate memory in the first run
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads, such as the learner's, may use the GPU meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step.run()
        self._pool = graph.pool()
        return graph

    def _warn_once(self, kind: str, reason: str) -> None:
        if kind not in self._warned_of:
            self._warned_of.add(kind)
            logger.warning("sampling without CUDA graphs, reason=%s", reason)


class _Step:
    """A decoding step with fixed tensor shapes: it reads one token per place and draws the next.

    Attributes:
        inputs: (4, B) fp64: id and position of each token, divisor of its logits, and uniform
            number for the draw. Places that are not in use have zeros.
        outputs: (2, B) fp64: ids of the drawn tokens, and their log-probabilities.
    """

    def __init__(self, logits: Callable[..., Tensor], layers: KeysAndValues) -> None:
        keys = layers[0][0]
        self.inputs = keys.new_zeros(4, len(keys), dtype=torch.double)
        self.outputs = torch.zeros_like(self.inputs[:2])
        self._logits, self._layers = logits, layers

    @torch.no_grad()
    def run(self) -> None:
        """Process the tokens in ``inputs``, and draw the next ones."""
        ids, places = self.inputs[:2].long()
        logits = self._logits(ids, places, self._layers)
        draws = draw_tokens(logits, self.inputs[2].to(logits.dtype), self.inputs[3])
        self.outputs.copy_(torch.stack([part.double() for part in draws]))


def usable_bytes(device: torch.device) -> int:
    """Return the GPU memory in bytes that sampling may still use: half of the free memory."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((free + cached) * _GPU_SHARE)


def padded_size(n: int) -> int:
    """Return the smallest number of the form 2^k or 3 * 2^k that is at least ``n``.

    Example:
        >>> [padded_size(n) for n in (1, 5, 9, 33)]
        [1, 6, 12, 48]
    """
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power
