"""Features for the tiny policy: a choice's words and its overlap with the instruction.

The features are independent of the benchmark. A candidate consists of a leading word and the rest
of its text (its argument). If the argument occurs in the observation, its context is the text from
there to the next candidate's argument, such as the title and price of a search hit in a shop, or
the objects on a shelf in a kitchen. Argument and context are compared with the instruction. Every
comparison is repeated relative to the best other candidate.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.trajectory import PastStep, View

_TOKEN = re.compile(r"\w+(?:\.\d+)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_EDGES = " \t\n[](){}<>'\"=,:;"
_MAX_CONTEXT = 300  # characters
_MAX_PAGE_WORDS = 256

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Text(NamedTuple):
    """The words, word pairs and numbers in a string."""

    words: tuple[str, ...]
    distinct: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    numbers: tuple[float, ...]


@lru_cache(maxsize=65536)
def parse_text(text: str) -> Text:
    """Parse a string into lowercase words (plural s removed), adjacent word pairs and numbers.

    Example:
        >>> parse_text("2 red mugs, under $9.50").words
        ('2', 'red', 'mug', 'under', '9.50')
        >>> parse_text("2 red mugs, under $9.50").numbers
        (2.0, 9.5)
    """
    tokens = _TOKEN.findall(text.lower())
    words = tuple(t[:-1] if len(t) > 3 and t[-1] == "s" and t[-2] != "s" else t for t in tokens)
    numbers = tuple(float(t) for t in tokens if _NUMBER.fullmatch(t))
    return Text(words, frozenset(words), frozenset(pairwise(words)), numbers)


@lru_cache(maxsize=65536)
def bucket_index(word: str, buckets: int) -> int:
    """Return the index of a word's row in the embedding table. It is the same in every process."""
    return zlib.crc32(word.encode()) % buckets


class WordWeights:
    """Inverse document frequencies, which give common words a low weight.

    ``counts`` is the number of texts, out of ``n``, that contain each word. Without texts, every
    word has weight 1.
    """

    def __init__(self, counts: Mapping[str, int] | None = None, n: int = 0) -> None:
        self.counts, self.n = dict(counts or {}), n
        self._weights = {word: self._idf(count) for word, count in self.counts.items()}
        self._unseen = self._idf(0)

    @classmethod
    def fit(cls, texts: Iterable[str]) -> WordWeights:
        """Compute word weights from texts, counting each distinct text once."""
        distinct = set(texts)
        counts = Counter(word for text in distinct for word in parse_text(text).distinct)
        return cls(dict(sorted(counts.items())), len(distinct))

    def total(self, words: Iterable[str]) -> float:
        """Return the total weight of the given words, without order-dependent rounding errors."""
        weights, unseen = self._weights, self._unseen
        return math.fsum([weights.get(word, unseen) for word in words])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WordWeights):
            return NotImplemented
        return (self.counts, self.n) == (other.counts, other.n)

    __hash__ = None  # type: ignore[assignment]

    def _idf(self, count: int) -> float:
        return math.log((self.n + 1) / (count + 1)) + 0.1 if self.n else 1.0


class Encoded(NamedTuple):
    """A choice among n candidates, encoded as arrays."""

    words: Ints  # word rows of all candidates, concatenated
    n_words: Ints  # (n,)
    leading: Ints  # (n,) row of each candidate's leading word
    page: Ints  # distinct word rows of the observation
    instruction: Ints  # distinct word rows of the instruction
    dense: Floats  # (n, N_DENSE)


class _Page(NamedTuple):
    """The part of an encoding that is independent of the history."""

    words: Ints
    n_words: Ints
    leading: Ints
    leading_words: tuple[str, ...]
    page: Ints
    instruction: Ints
    rows: Floats  # (n, _N_PAGE)


class Encoder:
    """A caching encoder that turns choices into arrays.

    The cache keeps ``max_cached`` encodings and drops the oldest.
    """

    def __init__(self, weights: WordWeights, *, buckets: int, max_cached: int = 8_000) -> None:
        self.weights, self.buckets, self.max_cached = weights, buckets, max_cached
        self._pages: OrderedDict[Any, _Page] = OrderedDict()
        self._whole: OrderedDict[Any, Encoded] = OrderedDict()

    def encode(self, view: View, choices: tuple[str, ...]) -> Encoded:
        """Encode one choice as arrays."""
        past_steps = tuple((turn.observation, turn.action) for turn in view.history)
        key = (view.instruction, view.observation, choices, past_steps)
        features = self._whole.get(key)
        if features is None:
            page = self._get_page(view, choices)
            past = _history_features(view, choices, page.leading_words)
            dense = _add_relative_columns(np.concatenate([page.rows, past], axis=1))
            features = Encoded(*page[:3], page.page, page.instruction, dense)
            _add_to_cache(self._whole, key, features, self.max_cached)
        return features

    def _get_page(self, view: View, choices: tuple[str, ...]) -> _Page:
        key = (view.instruction, view.observation, choices)
        page = self._pages.get(key)
        if page is None:
            page = self._encode_page(view.instruction, view.observation, choices)
            _add_to_cache(self._pages, key, page, self.max_cached)
        return page

    def _encode_page(self, instruction: str, observation: str, choices: tuple[str, ...]) -> _Page:
        content = observation.replace(instruction, " ") if instruction else observation
        wanted, page = parse_text(instruction), parse_text(content)
        split = [split_candidate(choice) for choice in choices]
        spans = find_contexts([argument for _, argument in split], content)
        rows = self._page_features(wanted, page, instruction.lower(), split, spans)
        texts = [parse_text(choice) for choice in choices]
        return _Page(
            words=self._bucket_indices(word for text in texts for word in text.words),
            n_words=np.array([len(text.words) for text in texts], dtype=np.int64),
            leading=self._bucket_indices(f"^{leading}" for leading, _ in split),
            leading_words=tuple(leading for leading, _ in split),
            page=self._bucket_indices(tuple(dict.fromkeys(page.words))[:_MAX_PAGE_WORDS]),
            instruction=self._bucket_indices(tuple(dict.fromkeys(wanted.words))),
            rows=rows,
        )

    def _bucket_indices(self, words: Iterable[str]) -> Ints:
        return np.array([bucket_index(word, self.buckets) for word in words], dtype=np.int64)

    def _page_features(
        self,
        wanted: Text,
        page: Text,
        instruction: str,
        split: Sequence[tuple[str, str]],
        spans: Sequence[tuple[float, str]],
    ) -> Floats:
        """Return (n, _N_PAGE) features that compare each candidate with the instruction."""
        around = [parse_text(context) for _, context in spans]
        local = _weights_by_context_rarity(wanted, around)
        share = Counter(leading for leading, _ in split)
        want = self.weights.total(wanted.distinct) or 1.0
        shared = (
            *_compare_numbers(page, wanted),
            self.weights.total(wanted.distinct & page.distinct) / want,
            min(len(split), 40) / 20,
        )
        rows = []
        for (leading, argument), (position, _), context in zip(split, spans, around, strict=True):
            arg = parse_text(argument)
            rows.append(
                (
                    *self._overlap_features(arg, context, wanted, want, local),
                    float(_find_word(instruction, argument) >= 0),
                    float(position >= 0),
                    max(position, 0.0),
                    *_compare_numbers(context, wanted),
                    float(bool(arg.numbers)),
                    float(bool(set(arg.numbers) & set(wanted.numbers))),
                    math.log1p(len(arg.words)) / 3,
                    share[leading] / len(split),
                    *shared,
                )
            )
        return np.array(rows, dtype=np.float32).reshape(len(split), _N_PAGE)

    def _overlap_features(
        self, arg: Text, context: Text, wanted: Text, want: float, local: Mapping[str, float]
    ) -> tuple[float, ...]:
        """Return ``_N_COMPARED`` features that compare an argument with the instruction."""
        total = self.weights.total
        near = context.distinct & wanted.distinct
        in_arg, in_context = total(arg.distinct & wanted.distinct), total(near)
        return (
            in_arg / (total(arg.distinct) or 1.0),
            in_arg / want,
            len(arg.pairs & wanted.pairs) / (len(arg.pairs) or 1),
            in_context / (total(context.distinct) or 1.0),
            in_context / want,
            math.fsum(local[word] for word in near) / (math.fsum(local.values()) or 1.0),
            len(context.pairs & wanted.pairs) / (len(wanted.pairs) or 1),
            total((arg.distinct | context.distinct) & wanted.distinct) / want,
        )


@lru_cache(maxsize=65536)
def split_candidate(candidate: str) -> tuple[str, str]:
    """Split a candidate into its first word and the remaining text.

    Example:
        >>> split_candidate("click[Buy Now]"), split_candidate("go to drawer 1")
        (('click', 'buy now'), ('go', 'to drawer 1'))
    """
    text = candidate.lower()
    match = _TOKEN.search(text)
    if match is None:
        return "", text.strip(_EDGES)
    return match.group(), text[match.end() :].strip(_EDGES)


def find_contexts(arguments: Sequence[str], observation: str) -> list[tuple[float, str]]:
    """Return each argument's position in an observation and the text that follows the argument.

    If an argument does not occur, leading words are dropped until it does ("to drawer 1",
    "drawer 1").

    Returns:
        The relative position of each argument in [0, 1], -1 if it does not occur, and its context.
    """
    text = observation.lower()
    starts, ends = [], []
    for argument in arguments:
        start, length = _find_argument(text, argument)
        starts.append(start)
        ends.append(start + length)
    borders = sorted(start for start in starts if start >= 0)
    spans = []
    for start, end in zip(starts, ends, strict=True):
        if start < 0:
            spans.append((-1.0, ""))
            continue
        border = next((b for b in borders if b >= end), len(text))
        spans.append((start / len(text), text[end : min(border, end + _MAX_CONTEXT)]))
    return spans


def _find_argument(text: str, argument: str) -> tuple[int, int]:
    for _ in range(4):
        start = _find_word(text, argument)
        if start >= 0:
            return start, len(argument)
        argument = argument.partition(" ")[2]
    return -1, 0


def _find_word(text: str, argument: str, start: int = 0) -> int:
    """Find ``argument`` as a whole word, and return its index or -1 as :meth:`str.find` does."""
    if not argument:
        return -1
    start = text.find(argument, start)
    while start >= 0:
        end = start + len(argument)
        before = start > 0 and text[start - 1].isalnum() and argument[0].isalnum()
        after = end < len(text) and text[end].isalnum() and argument[-1].isalnum()
        if not before and not after:
            return start
        start = text.find(argument, start + 1)
    return -1


def _weights_by_context_rarity(wanted: Text, around: Sequence[Text]) -> dict[str, float]:
    """Return a weight for each instruction word. Words in fewer candidate contexts weigh more."""
    n = sum(bool(text.words) for text in around)
    counts = Counter(word for text in around for word in text.distinct & wanted.distinct)
    return {word: math.log((n + 1) / count) for word, count in counts.items()}


def _compare_numbers(text: Text, wanted: Text) -> tuple[float, float, float, float]:
    """Compare the last number in a string with the last number in the instruction."""
    if not text.numbers or not wanted.numbers:
        return (float(bool(text.numbers)), 0.0, 0.0, 0.0)
    here, there = text.numbers[-1], wanted.numbers[-1]
    ratio = math.log((here + 1) / (there + 1))
    return (1.0, float(here <= there), max(-2.0, min(2.0, ratio)), float(here == there))


def _history_features(view: View, choices: tuple[str, ...], leading: Sequence[str]) -> Floats:
    """Return features that compare each candidate with the agent's past actions."""
    past: tuple[PastStep, ...] = view.history
    here = {turn.action for turn in past if turn.observation == view.observation}
    counts = Counter(turn.action for turn in past)
    last = past[-1].action if past else ""
    last_leading = split_candidate(last)[0]
    shared = (float(bool(here)), len(here) / 4, min(len(past), 20) / 10)
    ahead = _argument_distances(view.instruction.lower(), past, choices)
    nearest = min((distance for distance in ahead if distance >= 0), default=-1)
    rows = [
        (
            float(choice in here),
            min(counts[choice], 3) / 3,
            float(choice == last),
            float(word == last_leading),
            float(distance >= 0),
            float(distance >= 0 and distance == nearest),
            *shared,
        )
        for choice, word, distance in zip(choices, leading, ahead, strict=True)
    ]
    return np.array(rows, dtype=np.float32).reshape(len(choices), _N_PAST)


def _argument_distances(
    instruction: str, past: Sequence[PastStep], choices: Sequence[str]
) -> list[int]:
    """Measure how far each candidate's argument is, in the instruction, from the last one used.

    A pointer moves through the instruction: each past action moves it past the action's argument,
    if the argument occurs after the pointer. An argument that makes up most of the instruction is
    ignored as unspecific.

    Returns:
        Characters from the pointer to each argument; -1 if the argument does not occur after it.
    """
    pointer = 0
    for turn in past:
        argument = split_candidate(turn.action)[1]
        start = (
            _find_word(instruction, argument, pointer)
            if 2 * len(argument) < len(instruction)
            else -1
        )
        pointer = start + len(argument) if start >= 0 else pointer
    starts = [_find_word(instruction, split_candidate(choice)[1], pointer) for choice in choices]
    return [start - pointer if start >= 0 else -1 for start in starts]


def _add_relative_columns(rows: Floats) -> Floats:
    """Add columns that compare each candidate's features with the maximum over all candidates."""
    compared = rows[:, :_N_COMPARED]
    gap = compared - compared.max(axis=0, keepdims=True)
    fresh = compared[:, :3] * (1.0 - rows[:, _N_PAGE : _N_PAGE + 1])  # 0 if chosen here before
    best_fresh = np.broadcast_to(fresh.max(axis=0, keepdims=True), fresh.shape)
    best = (gap > -1e-6).astype(np.float32)
    return np.concatenate([rows, gap, best, fresh, best_fresh], axis=1)


def _add_to_cache(cache: OrderedDict[Any, Any], key: Any, value: Any, limit: int) -> None:
    cache[key] = value
    if len(cache) > limit:
        cache.popitem(last=False)


_N_COMPARED = 8
_N_PAGE = 25
_N_PAST = 9
N_DENSE = _N_PAGE + _N_PAST + 2 * _N_COMPARED + 6
"""Width of :attr:`Encoded.dense`."""
