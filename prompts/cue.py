"""Prompt files with a single block, such as cues that guide an agent.

A cue file begins with a Jinja comment that contains TOML, and has one block::

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
    """The header of a prompt file for a cue (guidance for an agent).

    Attributes:
        kind: the kind of prompt.
    """

    kind: Literal["cue"]


class CuePrompt(PromptFile[CueHeader]):
    """A prompt file for a cue (guidance for an agent)."""

    def write(self, inputs: Mapping[str, Any]) -> str:
        """Fill in the inputs and return the cue's text; see :meth:`PromptFile.fill`."""
        return self.fill(BLOCK, inputs)


def load_cue(name: str) -> CuePrompt:
    """Load a cue's prompt file; see :func:`read_prompt`.

    Raises:
        ConfigError: if the file does not exist or is invalid.
    """
    return parse_cue(*read_prompt(name))


def parse_cue(text: str, source: str = "the prompt") -> CuePrompt:
    """Parse the text of a cue file, in the format described in the module's docstring.

    Raises:
        ConfigError: if the header, the block or the inputs are invalid. The message names the file
            as ``source``.
    """
    header = read_header(text, CueHeader, source)
    check_body(text, header.inputs, (BLOCK,), source)
    return CuePrompt(header, text)
