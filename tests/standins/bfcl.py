"""A stand-in for a model on BFCL: it asks again for the first calls that worked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from coevo_gym.core.evolution import Exchange, Proposal
from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.engine.official_calls import parse_message

_PURPOSE = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def propose(walk: Sequence[Exchange]) -> Iterator[Proposal]:
    """One request for two calls, and a conversation of two turns for four."""
    worked = list(_successful_messages(walk))
    if len(worked) >= 2:
        instruction = " Then ".join(f"{_request_text(message)}." for message in worked[:2])
        yield _proposal((f"Please {instruction}",), worked[:2])
    if len(worked) >= 4:
        turns = tuple(
            f"Could you {_request_text(first)}, and {_request_text(second)}?"
            for first, second in (worked[:2], worked[2:4])
        )
        yield _proposal(turns, [*worked[:2], "That is done.", *worked[2:4], "That, too."])


def _proposal(turns: tuple[str, ...], actions: Sequence[str]) -> Proposal:
    return Proposal(
        description=" ".join(turns), turns=turns, actions=tuple(actions), confidence=0.9
    )


def _successful_messages(walk: Sequence[Exchange]) -> Iterator[str]:
    """The messages whose call gave something new, and no error."""
    seen = {"None", "{}", "[]"}
    for exchange in walk:
        results = _RESULT.findall(exchange.observation)
        if exchange.error_kind or not results or results[0] in seen or _is_false(results[0]):
            continue
        seen.add(results[0])
        yield exchange.action


def _is_false(result: str) -> bool:
    try:
        output = json.loads(result)
    except ValueError:
        return False
    return isinstance(output, dict) and not next(iter(output.values()), None)


def _request_text(message: str) -> str:
    """A message's call in words: what it is for, and what it is given."""
    (call,) = (item for item in parse_message(message) if isinstance(item, Call))
    purpose = _PURPOSE.findall(message)[-1]
    values = [f'"{value}"' for value in (*call.positional, *call.arguments.values())]
    return f"{purpose} with {', '.join(values)}" if values else purpose
