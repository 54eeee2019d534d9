"""Functions that extract actions from a model's answers and convert actions to answers.

An action can be extracted from any text; the env decides if the action is valid.
"""

from __future__ import annotations

import re
from typing import Protocol

from coevo_gym.core.notations import NOTATIONS, read_action_calls, read_calls
from coevo_gym.core.registry import ANSWER_FORMS
from coevo_gym.core.thoughts import THOUGHT_CLOSES, without_thoughts
from coevo_gym.core.tool_calls import Call, write_hermes
from coevo_gym.prompts.loader import FORMS, AnswerForm

_OPEN, _CLOSE = "<action>", "</action>"
_THOUGHT_LINE = re.compile(
    r"^[ \t*]*thought[ \t*]*:.*?(?=<action>|<tool_call>|```|$)", re.IGNORECASE | re.MULTILINE
)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)


class AnswerReader(Protocol):
    """Interface for answer forms, as in :data:`coevo_gym.core.registry.ANSWER_FORMS`."""

    def read(self, text: str) -> str:
        """Return the action in a complete answer, including its thoughts."""
        ...

    def write(self, action: str) -> str:
        """Return an answer that contains only the given action."""
        ...


def load_form(name: str) -> AnswerReader:
    """Import and return the answer form registered under the given name."""
    form: AnswerReader = ANSWER_FORMS.load(name)
    return form


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
            and ``"code"`` return the whole text. Thoughts are ignored. A form of
            :data:`coevo_gym.core.registry.ANSWER_FORMS` reads the answer as it is.
        cut: True if the answer was cut off at the token limit. Parts that may be incomplete are
            then ignored: an action without its closing tag, a code block without its closing fence,
            code without fences, and the words of a text after its last line or closing bracket.
            Forms of the registry do not use it.

    Example:
        >>> action_of("<think>Where?</think>I look.<action>look</action>", "action")
        'look'
        >>> action_of("look", "action"), action_of("<action>look</action>", "text")
        ('look', '<action>look</action>')
        >>> action_of("<action>go to shelf 1", "action", cut=True)
        ''
        >>> action_of("click[buy now] becau", "text", cut=True)
        'click[buy now]'
    """
    if form not in FORMS:
        return load_form(form).read(answer)
    text = without_thoughts(answer)
    if form != "action":
        return _complete_part(text, form) if cut else text
    _, tag, rest = text.rpartition(_OPEN)
    action, closed, _ = rest.partition(_CLOSE)
    if cut and not (tag and closed):
        return ""
    return action.strip() if tag else text.rpartition("\n")[2].strip()


def _complete_part(text: str, form: AnswerForm) -> str:
    """Return the part of a truncated text that is certain to be complete."""
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    if form == "code" and len(fences) < 2:
        return ""  # a part of a program may do something else than the whole
    if fences:
        return text[: fences[-1]].strip() if len(fences) % 2 else text
    if "</tool_call>" in text:  # the env reads the complete calls
        return text
    return text[: max(text.rfind("\n"), text.rfind("]")) + 1].strip()


def translate_calls(answer: str, notation: str, tools: str, *, cut: bool = False) -> str:
    r"""Convert an answer's tool calls to the env's notation; return other answers unchanged.

    An unreadable call is passed on with the reason, and the env returns the reason to the agent.

    Args:
        answer: any text without thoughts.
        notation: a name in :data:`coevo_gym.core.notations.NOTATIONS`.
        tools: the tools, as the JSON text of a chat request's ``tools``.
        cut: True if the answer was cut off at the token limit; only complete calls then count.

    Example:
        >>> translate_calls("[look(at='mug')]", "pythonic", "[]")
        '<tool_call>\n{"name": "look", "arguments": {"at": "mug"}}\n</tool_call>'
    """
    calls = read_calls(notation, answer, tools or "[]")
    if not calls:
        return _complete_part(answer, "text") if cut else answer
    return write_hermes(call for call in calls if isinstance(call, Call) or not cut)


def answer_of(action: str, form: AnswerForm, notation: str = "", tools: str = "[]") -> str:
    """Return an answer that contains only the given action.

    With a ``notation``, calls of ``tools`` in the action are written in this notation.

    Example:
        >>> answer_of("look", "action")
        '<action>look</action>'
    """
    if form not in FORMS:
        return load_form(form).write(action)
    calls = read_action_calls(action, tools or "[]") if notation else ()
    if calls and all(isinstance(call, Call) for call in calls):
        thought, closed, _ = action.rpartition(THOUGHT_CLOSES)
        calls_text = NOTATIONS[notation].write([call for call in calls if isinstance(call, Call)])
        return thought + closed + calls_text
    return f"{_OPEN}{action}{_CLOSE}" if form == "action" else action
