"""Text matching that finds values in engine output and the steps that first showed them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.core.benchmark import Effect, Evidence, Replay
from coevo_gym.curricula.pool.embed import words

_FILLERS = (
    "a an and are as at be by do does for from get give have how i in into is it its let make many "
    "me my of on one or our please put show so some tell than that the their them then there these "
    "this those to use user want was were what which will with would you your"
)
FILLERS = frozenset(_FILLERS.split())
"""Words without a specific meaning."""
_STEM = 4
_ENDING = 3


def contains_phrase(text: str, phrase: str) -> bool:
    """Return True if the text contains the phrase as whole words, ignoring case and spacing.

    Example:
        >>> contains_phrase("Answer with the word  Kettle.", "kettle")
        True
        >>> contains_phrase("a kettleful", "kettle")
        False
        >>> contains_phrase("pay 12.50", "12"), contains_phrase("pay 12.", "12")
        (False, True)
    """
    phrase, text = " ".join(phrase.casefold().split()), " ".join(text.casefold().split())
    edges = rf"(?<!\w)(?<!\d\.){re.escape(phrase)}(?!\w)(?!\.\d)"
    return bool(phrase) and phrase in text and re.search(edges, text) is not None


def mentions(text: str, name: str) -> bool:
    """Return True if a string contains all non-filler words of a name, in any inflection.

    Example:
        >>> mentions("Delete both of my alarms", "delete alarm"), mentions("Put it there", "it")
        (True, False)
    """
    text_words = words(text)
    name_words = [word for word in words(name) if word not in FILLERS]
    return bool(name_words) and all(
        any(_are_word_forms(word, other) for other in text_words) for word in name_words
    )


def _are_word_forms(first: str, second: str) -> bool:
    """Return True if two words are forms of the same word."""
    if first == second:
        return True
    short, long = sorted((first, second), key=len)
    if len(short) < _STEM:
        return len(short) > 1 and long in (f"{short}s", f"{short}es")
    return len(long) - len(short) <= _ENDING and long.startswith(
        short[: max(_STEM, len(short) - 1)]
    )


class ShownValues:
    """The values and text that an agent has been shown so far.

    Example:
        >>> told = ShownValues("Like the song Low Tide.")
        >>> sorted(told.new_values('[{"title": "Low Tide", "song_id": 12}]'))
        ['12']
    """

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self._values: set[str] = set()

    def add(self, text: str) -> None:
        """Record text that the agent has been shown."""
        self._values |= self.new_values(text)

    def new_values(self, text: str) -> set[str]:
        """Return the values in a string that have not been shown before."""
        return {
            value
            for value in set(values_in(text)) - self._values
            if not any(contains_phrase(other, value) for other in self._texts)
        }

    @staticmethod
    def item_counts(text: str) -> set[str]:
        """Return a JSON list's length, and the number of items that contain each distinct value."""
        rows = _parse_json(text)
        if not isinstance(rows, list):
            return set()
        same = Counter(value for row in rows for value in set(_leaves(row)))
        return {str(len(rows)), *map(str, same.values())}


def values_in(text: str) -> Iterator[str]:
    """Yield the values in a JSON text, or the words and numbers in any other text."""
    parsed = _parse_json(text)
    yield from words(text) if parsed is None else _leaves(parsed)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if text.strip():
            yield text


class Sources:
    """The values that each step of a replay shows for the first time.

    For example, a replay can use an id without the step that listed it, but an agent could not know
    the id. That step is needed although a replay without it works.

    Args:
        replay: the replayed steps; only steps that read something are sources.
        evidence: the task's text, whose values the agent already knows.
    """

    def __init__(self, replay: Replay, evidence: Evidence) -> None:
        known = ShownValues(evidence.said)
        self._news: list[set[str]] = []
        self._answers: list[bool] = []
        for effect, text in zip(replay.effects, replay.shown, strict=True):
            reads = effect is Effect.READ
            self._news.append(known.new_values(text) if reads else set())
            self._answers.append(reads and bool(known.item_counts(text) & {*evidence.answers}))
            known.add(text)

    def is_used_later(self, step: int, later: Sequence[str]) -> bool:
        """Return True if the answer or a later action uses a count or value from the given step."""
        text = "\n".join(later)
        return self._answers[step] or any(
            contains_phrase(text, value) for value in self._news[step]
        )
