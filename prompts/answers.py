"""Functions that extract actions from a model's answers and convert actions to answers.

An action can be extracted from any text; the env decides if the action is valid.
"""

from __future__ import annotations

import re

from coevo_gym.prompts import AnswerForm

_OPEN, _CLOSE = "<action>", "</action>"
_THOUGHT = re.compile(r"(</?think>)")
_THOUGHT_LINE = re.compile(
    r"^[ \t*]*thought[ \t*]*:.*?(?=<action>|<tool_call>|```|$)", re.IGNORECASE | re.MULTILINE
)


def without_thoughts(answer: str) -> str:
    """Return an answer without the text between ``<think>`` tags.

    A thought without a closing tag continues to the end. A thought without an opening tag starts at
    the beginning of the answer, as in chat formats that open the thought in the prompt.

    Example:
        >>> without_thoughts("<think>A mug is wanted.</think> look")
        'look'
        >>> without_thoughts("A mug is wanted.</think>look"), without_thoughts("look <think>A mug")
        ('look', 'look')
    """
    kept: list[str] = []
    inside = False
    for part in _THOUGHT.split(answer):
        if part == "<think>":
            inside = True
        elif part == "</think>":
            if not inside:
                kept.clear()
            inside = False
        elif not inside:
            kept.append(part)
    return "".join(kept).strip()


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


def action_of(answer: str, form: AnswerForm) -> str:
    """Return the action in an answer, or "" if there is none.

    Args:
        answer: any text.
        form: ``"action"`` returns the text after the last ``<action>`` tag, up to the closing tag
            or the end of the answer; without a tag, it returns the last non-blank line. ``"text"``
            returns the whole text. Thoughts are ignored.

    Example:
        >>> action_of("<think>Where?</think>I look.<action>look</action>", "action")
        'look'
        >>> action_of("look", "action"), action_of("<action>look</action>", "text")
        ('look', '<action>look</action>')
    """
    said = without_thoughts(answer)
    if form == "text":
        return said
    _, tag, rest = said.rpartition(_OPEN)
    if tag:
        return rest.partition(_CLOSE)[0].strip()
    return said.rpartition("\n")[2].strip()


def answer_of(action: str, form: AnswerForm) -> str:
    """Return an answer that contains only the given action.

    Example:
        >>> answer_of("look", "action")
        '<action>look</action>'
    """
    return f"{_OPEN}{action}{_CLOSE}" if form == "action" else action
