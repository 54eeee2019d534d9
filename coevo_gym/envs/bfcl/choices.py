"""Candidate actions in a dialogue: calls that match the tools and use values seen so far."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import View
from coevo_gym.envs.bfcl.arguments import (
    CandidateValues,
    collect_values,
    rank_combinations,
    rank_values,
)
from coevo_gym.envs.bfcl.engine.official_calls import format_python_call, parse_message
from coevo_gym.envs.bfcl.engine.toolbox import bind_arguments
from coevo_gym.envs.bfcl.engine.tools import schemas_text
from coevo_gym.envs.bfcl.signatures import Function, parse_functions
from coevo_gym.envs.bfcl.tasks import CLOSING
from coevo_gym.envs.bfcl.values import normalise_numbers, to_hashable, words_of
from coevo_gym.envs.bfcl.words import purpose

MAX_CHOICES = 128
"""Maximum number of choices, including the closing message."""
MAX_PER_FUNCTION = 32
_EVEN = 12.0
"""Balance between functions: a higher value spreads the choices more evenly over functions."""


def choices(view: View) -> tuple[str, ...]:
    """Return the messages that a scoring policy can choose from.

    The closing message comes first, then calls by likelihood. A choice consists of the function's
    documented purpose and a call, so that a scorer that compares words can distinguish functions.
    The call is written as Python, with required arguments by position and optional arguments by
    name.
    """
    seen = (*(turn.observation for turn in view.history), view.observation)
    actions = tuple(turn.action for turn in view.history)
    return _rank_choices(view.info["bfcl.tools"], view.instruction, seen, actions)


def split_calls(message: str) -> tuple[str, ...]:
    """Split a message into one message per call, in the notation of :func:`choices`.

    If a call in a message does not fit any function, the message is returned unchanged.

    Example:
        >>> split_calls('<tool_call>{"name": "ls", "arguments": {"a": true}}</tool_call>')
        ('<think>list the contents of the current directory</think>[ls(a=True)]',)
        >>> split_calls("Done.")
        ('Done.',)
    """
    calls = [call for call in parse_message(message) if isinstance(call, Call)]
    try:
        return tuple(_rewrite_call(bind_arguments(call)) for call in calls) or (message,)
    except (KeyError, TypeError):
        return (message,)


@lru_cache(maxsize=1024)
def _rank_choices(
    tools: str, request: str, seen: tuple[str, ...], actions: tuple[str, ...]
) -> tuple[str, ...]:
    offered = parse_functions(tools)
    pool = collect_values(offered, request, seen, actions)
    asked = words_of(request)
    rarity = _word_rarity(tools)
    ranked = sorted(offered, key=lambda function: -_relevance(function, asked, rarity))
    streams = [_candidate_calls(function, rank, pool) for rank, function in enumerate(ranked)]
    best = islice(heapq.merge(*streams, key=lambda item: item[0]), MAX_CHOICES - 1)
    return (CLOSING, *(_format_call(function, row) for _, function, row in best))


def _candidate_calls(
    function: Function, rank: int, pool: CandidateValues
) -> Iterator[tuple[float, Function, list[Any]]]:
    """Yield possible calls to a function, each with a sort key."""
    candidates = rank_combinations(
        [rank_values(parameter, pool) for parameter in function.parameters]
    )
    for number, row in enumerate(islice(candidates, MAX_PER_FUNCTION), start=1):
        yield number * (rank + _EVEN), function, row


def _relevance(function: Function, asked: frozenset[str], rarity: Mapping[str, float]) -> float:
    """Score a function by the words that its name and description share with a request."""
    in_name = sum(rarity[word] for word in sorted(function.words & asked))
    in_about = sum(rarity[word] for word in sorted(function.about & asked))
    return 2.0 * in_name + in_about


@lru_cache(maxsize=256)
def _word_rarity(tools: str) -> Mapping[str, float]:
    """Map each word in the tools' names and descriptions to its rarity."""
    counts = Counter(word for function in parse_functions(tools) for word in function.words)
    counts += Counter(word for function in parse_functions(tools) for word in function.about)
    return {word: 1.0 / count for word, count in counts.items()}


def _rewrite_call(call: Call) -> str:
    (function,) = parse_functions(schemas_text((call.name,)))
    return _format_call(function, [call.arguments.get(p.name) for p in function.parameters])


def _format_call(function: Function, row: Sequence[Any]) -> str:
    """Format a call as a message, leaving out None and default values."""
    positional, keywords = [], {}
    for parameter, value in zip(function.parameters, row, strict=True):
        value = normalise_numbers(value)
        if parameter.required:
            positional.append(value)
        elif value is not None and to_hashable(value) != parameter.default:
            keywords[parameter.name] = value
    call = format_python_call(Call(function.name, keywords, tuple(positional)))
    return f"<think>{purpose(function.name)}</think>[{call}]"
