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
    check_blocks,
    check_inputs,
    frozen_inputs,
    read_header,
    read_prompt,
    write_block,
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
        """Return the words, filled in.

        Raises:
            ConfigError: if the inputs are not those that the file declares.
        """
        values = frozen_inputs(inputs, self.header.inputs, self.label)
        advice = "Do its inputs have the form that the text expects?"
        return write_block(self.text, BLOCK, values, self.label, advice)


def load_cue(name: str) -> CuePrompt:
    """Return the prompt of a cue.

    Args:
        name: ``folder/name`` of a file that comes with coevo_gym, ``package:file`` of one that
            comes with another package, or the path of a file that ends in ``.j2``.

    Raises:
        ConfigError: if the file does not exist, or is invalid.
    """
    text, source = read_prompt(name)
    return parse_cue(text, source=source)


def parse_cue(text: str, *, source: str = "the prompt") -> CuePrompt:
    """Parse the text of a cue's file.

    Args:
        text: header and block, as in the module's docstring.
        source: its name in error messages.

    Raises:
        ConfigError: if the header, the block or the inputs are invalid.
    """
    header = read_header(text, CueHeader, source)
    used = check_blocks(text, (BLOCK,), source)
    check_inputs(used, set(header.inputs), (), source)
    return CuePrompt(header, text)
