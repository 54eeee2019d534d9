"""Prompts of cues: words that guide an agent beyond its task, in training and exploration only.

Such a file begins with a Jinja comment that holds TOML, and has one block::

    {#
    kind = "cue"
    name = "kettle/guide"
    version = 1
    inputs = ["reason"]
    #}
    {% block cue %}You are here because of {{ reason }}.{% endblock %}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from coevo_gym.prompts.template import (
    PromptFile,
    PromptHeader,
    check_body,
    read_header,
    read_prompt,
)

BLOCK = "cue"


class CueHeader(PromptHeader):
    """The header of a cue's file.

    Attributes:
        kind: the kind of the prompt.
    """

    kind: Literal["cue"]


class CuePrompt(PromptFile[CueHeader]):
    """The prompt file of a cue."""

    def write(self, inputs: Mapping[str, Any]) -> str:
        """Return the words, filled in; see :meth:`PromptFile.fill`."""
        return self.fill(BLOCK, inputs)


def load_cue(name: str) -> CuePrompt:
    """Return the prompt of a cue, whose file :func:`read_prompt` finds by its name.

    Raises:
        ConfigError: if the file does not exist, or is invalid.
    """
    return parse_cue(*read_prompt(name))


def parse_cue(text: str, source: str = "the prompt") -> CuePrompt:
    """Parse the text of a cue's file, which has the form in the module's docstring.

    Raises:
        ConfigError: if the header, the block or the inputs are invalid; ``source`` is the file's
            name in the message.
    """
    header = read_header(text, CueHeader, source)
    check_body(text, header.inputs, (BLOCK,), source)
    return CuePrompt(header, text)
