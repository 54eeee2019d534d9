"""Functions that separate a model's thoughts from the rest of its answer.

Thoughts are either text between ``<think>`` tags, or messages of other channels than ``final``, as
in gpt-oss. A chat template may open a thought at the end of the prompt, so that the answer contains
only the closing tag, or no tag at all if it was cut off.
"""

from __future__ import annotations

import re

from coevo_gym.core.seams import Completion, Finish

THOUGHT_OPENS, THOUGHT_CLOSES = "<think>", "</think>"
_TAG = re.compile(r"(</?think>)")
_OPENED = re.compile(r"<think>\s*\Z")
_CHANNEL, _FINAL = "<|channel|>", "<|channel|>final<|message|>"


def thought_opening(prompt: str) -> str:
    r"""Return the text that opens a thought at the end of a prompt, or "" if there is none.

    Example:
        >>> thought_opening("<|assistant|>\n<think>\n"), thought_opening("<|assistant|>\n")
        ('<think>\n', '')
    """
    match = _OPENED.search(prompt)
    return match[0] if match else ""


def without_thoughts(answer: str) -> str:
    """Return an answer without its thoughts.

    A thought without a closing tag continues to the end. A thought without an opening tag starts at
    the beginning of the answer, as in chat formats that open the thought in the prompt. If the
    answer starts with a channel, only the text of its last ``final`` channel is returned.

    Example:
        >>> without_thoughts("<think>A mug is wanted.</think> look")
        'look'
        >>> without_thoughts("A mug is wanted.</think>look"), without_thoughts("look <think>A mug")
        ('look', 'look')
        >>> without_thoughts("<|channel|>analysis<|message|>A mug is wanted, so I look")
        ''
    """
    if answer.lstrip().startswith(_CHANNEL):
        answer = answer.rpartition(_FINAL)[2] if _FINAL in answer else ""
    parts: list[str] = []
    inside = False
    for part in _TAG.split(answer):
        if part == THOUGHT_OPENS:
            inside = True
        elif part == THOUGHT_CLOSES:
            if not inside:
                parts.clear()
            inside = False
        elif not inside:
            parts.append(part)
    return "".join(parts).strip()


def text_without_thoughts(completion: Completion) -> str:
    """Return the text of an answer without its thoughts.

    If an answer was cut off and its tokens are unknown, its prompt may have opened a thought. Such
    an answer counts as a thought unless it contains a closing tag. Policies that know the end of
    their prompt include the opening tag in the text.

    Example:
        >>> text_without_thoughts(Completion("Perhaps I should look", None, Finish.LENGTH))
        ''
    """
    text = completion.text
    unknown = completion.finish is Finish.LENGTH and completion.decision is None
    return "" if unknown and THOUGHT_CLOSES not in text else without_thoughts(text)
