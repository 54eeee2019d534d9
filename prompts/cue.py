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
    """What the file of a cue says about itself.

    Attributes:
        kind: tells it from other prompts.
    """

    kind: Literal["cue"]


class CuePrompt(PromptFile[CueHeader]):
    """The words of a cue."""

    def write(self, inputs: Mapping[str, Any]) -> str:
        """The words, filled in.

        Raises:
            ConfigError: if the inputs are not those that the file declares.
        """
        values = frozen_inputs(inputs, self.header.inputs, self.label)
        advice = "Do its inputs have the form that the text expects?"
        return write_block(self.text, BLOCK, values, self.label, advice)


def load_cue(name: str) -> CuePrompt:
    """The words of a cue.

    Args:
        name: ``room/name`` of a file that comes with coevo_gym, ``package:file`` of one that comes
            with another package, or the path of a file that ends in ``.j2``.

    Raises:
        ConfigError: if there is no such file, or it is not as it should be.
    """
    text, source = read_prompt(name)
    return parse_cue(text, source=source)


def parse_cue(text: str, *, source: str = "the prompt") -> CuePrompt:
    """The cue that a text holds.

    Args:
        text: header and block, as in the module's docstring.
        source: what to call it in errors.

    Raises:
        ConfigError: if the header, the block or the inputs are not as they should be.
    """
    header = read_header(text, CueHeader, source)
    used = check_blocks(text, (BLOCK,), source)
    check_inputs(used, set(header.inputs), (), source)
    return CuePrompt(header, text)
