"""Tags of a task: the apps mentioned in its words, and the kind of request."""

from __future__ import annotations

import re
from types import MappingProxyType

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import asks_nothing, tags_from


def _words(*phrases: str) -> re.Pattern[str]:
    """Return a pattern that matches any of the phrases as whole words."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(phrases)})(?!\w)", re.IGNORECASE)


APPS = MappingProxyType(
    {
        "amazon": _words("amazon"),
        "file_system": _words(
            "file[ _]?system", "files?", "folders?", "director(?:y|ies)", r"~/.*"
        ),
        "gmail": _words("gmail", "e-?mails?", "inbox"),
        "phone": _words("phone", "alarms?", "(?:text|voice) messages?", "text (?:my|the|all|each)"),
        "simple_note": _words("simple[ _]?notes?", "my notes?", "notes app"),
        "splitwise": _words("splitwise"),
        "spotify": _words("spotify"),
        "todoist": _words("todoist"),
        "venmo": _words("venmo"),
    }
)
"""Patterns for mentions of each app in a task's words."""
_QUESTION = _words(r"how (?:many|much|long)", "(?:tell|give) me", "answer with")
_ASKS = re.compile(
    r"(?:what|which|who|whose|when|where|quote)\b|(?!could|can|would|will).*\?$", re.I
)


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return ``app:`` for each mentioned app, and ``goal:question`` or ``goal:change``.

    Both are read from the words alone, because a request comes without a list of apps.
    """
    if asks_nothing(task):
        return ()
    said = " ".join(task.instruction.split())
    asks = _QUESTION.search(said) or _ASKS.match(said)
    apps = [("app", app) for app, words in APPS.items() if words.search(said)]
    return tags_from([*apps, ("goal", "question" if asks else "change")])
