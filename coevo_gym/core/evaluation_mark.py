"""The mark of episodes on held-out tasks, and the check that nothing learns from marked data.

Each exported row of a validation or test episode contains the notice as a value. Functions that
take data for training, exploration or prompts call :func:`refuse_marked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.task import Split

NOTICE = (
    "Evaluation data ({split} split), for viewing only. It must not be used in training, in "
    "exploration, or in prompts."
)
WHY_WITHHELD = "a score on held-out tasks means nothing once training has seen how they are judged"
"""The reason why verdicts on held-out tasks are shown only on request, as a clause."""
_START = "Evaluation data ("
_MARK = re.compile(r"Evaluation data \((\w+) split\), for viewing only\.")


def notice_of(split: str) -> str:
    """Return the warning for episodes on held-out tasks. Return "" for training tasks."""
    return "" if split == Split.TRAIN else NOTICE.format(split=split)


def find_marked_split(value: Any) -> str:
    """Return the split named by the mark in a JSON value, or "" if the value has no mark.

    Example:
        >>> find_marked_split({"messages": [], "notice": notice_of("val")})
        'val'
        >>> find_marked_split({"messages": [], "notice": notice_of("train")})
        ''
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if _START in one and (match := _MARK.search(one)):
                return match[1]
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
    return ""


def refuse_marked(value: Any, use: str, place: str = "The data") -> None:
    """Check that a JSON value or a text is not marked as an episode on a held-out task.

    Args:
        value: the JSON value, or the text.
        use: the intended use, such as ``"be imported"``.
        place: where the value comes from, for the message.

    Raises:
        SplitLeakError: if it is marked.
    """
    if split := find_marked_split(value):
        raise SplitLeakError(
            f"{place} is an exported episode of a {split} task, so it cannot {use}. Use episodes "
            "of training tasks: `coevo export NAME` without --split exports only those."
        )
