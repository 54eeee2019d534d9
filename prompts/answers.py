"""Functions that extract actions from a model's answers and convert actions to answers.

An action can be extracted from any text; the env decides if the action is valid.
"""

from __future__ import annotations

import re

from coevo_gym.core.thoughts import without_thoughts
from coevo_gym.prompts import AnswerForm

_OPEN, _CLOSE = "<action>", "</action>"
_THOUGHT_LINE = re.compile(
    r"^[ \t*]*thought[ \t*]*:.*?(?=<action>|<tool_call>|```|$)", re.IGNORECASE | re.MULTILINE
)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)


def without_thought_line(answer: str) -> str:
    r"""Return the part of an answer after its first ``Thought: …`` line.

    An action on that line ends the thought. If nothing follows the thought, the text before it is
    returned; an answer without such a line is returned unchanged.

    Example:
        >>> without_thought_line("Thought: A mug is wanted.\ngo to shelf 1")
        'go to shelf 1'
        >>> without_thought_line("Thought: A mug! <action>look</action>")
        '<action>look</action>'
    """
    thought = _THOUGHT_LINE.search(answer)
    if thought is None:
        return answer
    return answer[thought.end() :].strip() or answer[: thought.start()].strip()


def action_of(answer: str, form: AnswerForm, *, cut: bool = False) -> str:
    """Return the action in an answer, or "" if there is none.

    Args:
        answer: any text.
        form: ``"action"`` returns the text after the last ``<action>`` tag, up to the closing tag
            or the end of the answer; without a tag, it returns the last non-blank line. ``"text"``
            returns the whole text. Thoughts are ignored.
        cut: True if the answer was cut off at the token limit. An action without its closing tag
            and a code block without its closing fence are then ignored, as they are incomplete.

    Example:
        >>> action_of("<think>Where?</think>I look.<action>look</action>", "action")
        'look'
        >>> action_of("look", "action"), action_of("<action>look</action>", "text")
        ('look', '<action>look</action>')
        >>> action_of("<action>go to shelf 1", "action", cut=True)
        ''
    """
    said = without_thoughts(answer)
    if form == "text":
        return _complete_blocks(said) if cut else said
    _, tag, rest = said.rpartition(_OPEN)
    action, closed, _ = rest.partition(_CLOSE)
    if cut and not (tag and closed):
        return ""
    return action.strip() if tag else said.rpartition("\n")[2].strip()


def _complete_blocks(said: str) -> str:
    """Return a text without a code block at its end that lacks the closing fence."""
    fences = [fence.start() for fence in _FENCE.finditer(said)]
    return said[: fences[-1]].strip() if len(fences) % 2 else said


def answer_of(action: str, form: AnswerForm) -> str:
    """Return an answer that contains only the given action.

    Example:
        >>> answer_of("look", "action")
        '<action>look</action>'
    """
    return f"{_OPEN}{action}{_CLOSE}" if form == "action" else action
