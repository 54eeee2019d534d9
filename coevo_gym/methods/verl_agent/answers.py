"""Answers in verl-agent's format: a thought and an action, each between tags.

An answer always has an action, and is valid or invalid as a whole. Validity concerns the form
only: an action that the env refuses is still valid, and an invalid answer is still acted on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_OPEN, _CLOSE = "<action>", "</action>"
_THOUGHT = ("<think>", "</think>")
_CHINESE = re.compile("[\u4e00-\u9fff]")


class ParsedAnswer(NamedTuple):
    """The action in an answer, and a flag that is True if the answer is valid."""

    action: str
    valid: bool


def read_answer(text: str, *, last_characters: int) -> ParsedAnswer:
    """Return the action in an answer, and whether the answer is valid.

    The action is the text between the first opening and the first closing action tag, in lower
    case; it is empty if the closing tag comes first. If a tag is missing, the end of the answer is
    the action, and the answer is invalid. It is also invalid without both thought tags in exactly
    their case, or with a character of the block of common Chinese characters.

    Args:
        text: any text.
        last_characters: length of the action if a tag is missing.

    Example:
        >>> read_answer("<think>A desk.</think><action>Go to desk 1</action>", last_characters=30)
        ParsedAnswer(action='go to desk 1', valid=True)
        >>> read_answer("Go to desk 1", last_characters=6)
        ParsedAnswer(action='desk 1', valid=False)
    """
    lower = text.lower()
    begin, end = lower.find(_OPEN), lower.find(_CLOSE)
    if begin < 0 or end < 0:
        return ParsedAnswer(lower[-last_characters:], False)
    thinks = all(tag in text for tag in _THOUGHT)
    return ParsedAnswer(
        lower[begin + len(_OPEN) : end].strip(), thinks and not _CHINESE.search(text)
    )


@dataclass(frozen=True)
class TaggedAnswers:
    """An answer form with tags, for :data:`coevo_gym.core.registry.ANSWER_FORMS`.

    Attributes:
        last_characters: as in :func:`read_answer`.
    """

    last_characters: int

    def read(self, text: str) -> str:
        """Return the action in an answer."""
        return read_answer(text, last_characters=self.last_characters).action

    def write(self, action: str) -> str:
        """Return a valid answer with the given action and an empty thought."""
        return f"{_THOUGHT[0]}{_THOUGHT[1]}{_OPEN}{action}{_CLOSE}"


ALFWORLD = TaggedAnswers(30)
WEBSHOP = TaggedAnswers(20)


def is_valid(text: str) -> bool:
    """Return True if an answer has the requested form, with a thought and an action in tags."""
    return read_answer(text, last_characters=1).valid
