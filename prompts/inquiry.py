"""Prompts of inquiries: single questions to a model, each with a JSON answer.

Such a file begins with a Jinja comment that holds TOML, and has three blocks::

    {#
    kind = "inquiry"
    name = "kettle/summary"
    version = 1
    schema = "Summary"
    inputs = ["instruction"]
    #}
    {% block system %}You study how a kettle was used. Answer with one JSON object.{% endblock %}
    {% block user %}The task was: {{ instruction }}{% endblock %}
    {% block repair %}That cannot be read: {{ error }}. Answer again, with JSON alone.{% endblock %}

``system`` may be empty. ``repair`` is the reply to an answer that is not JSON, or does not fit
the schema; its further input ``error`` must not be declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.prompts.template import (
    PromptFile,
    PromptHeader,
    check_body,
    read_header,
    read_prompt,
)

BLOCKS = ("system", "user", "repair")
ERROR = "error"
"""The input of every ``repair`` block."""


class InquiryHeader(PromptHeader):
    """The header of the file of an inquiry's prompt.

    Attributes:
        kind: the kind of the prompt.
        answer_schema: name of the model that answers must fit, for people; ``schema`` in the file.
    """

    kind: Literal["inquiry"]
    answer_schema: str = Field(min_length=1, alias="schema")


class InquiryPrompt(PromptFile[InquiryHeader]):
    """The prompt file of an inquiry."""

    def system(self, inputs: Mapping[str, Any]) -> str:
        """Return the system message; "" for none."""
        return self.fill("system", inputs)

    def user(self, inputs: Mapping[str, Any]) -> str:
        """Return the question."""
        return self.fill("user", inputs)

    def repair(self, inputs: Mapping[str, Any], error: str) -> str:
        """Return the reply to an answer that cannot be used."""
        return self.fill("repair", inputs, error=error)


def load_inquiry(name: str | Path) -> InquiryPrompt:
    """Return the prompt of an inquiry, whose file :func:`read_prompt` finds by its name.

    Raises:
        ConfigError: if the file does not exist, or is invalid.
    """
    return parse_inquiry(*read_prompt(str(name)))


def parse_inquiry(text: str, source: str = "the prompt") -> InquiryPrompt:
    """Parse the text of an inquiry's file, which has the form in the module's docstring.

    Raises:
        ConfigError: if the header, the blocks or the inputs are invalid; ``source`` is the file's
            name in the message.
    """
    header = read_header(text, InquiryHeader, source)
    if ERROR in header.inputs:
        raise ConfigError(f"{source} declares {ERROR!r}, which every repair block gets anyway.")
    check_body(text, header.inputs, BLOCKS, source, given={ERROR})
    return InquiryPrompt(header, text)
