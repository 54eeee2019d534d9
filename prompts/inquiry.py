"""Prompts of inquiries: questions that a model is asked one at a time, each with a JSON answer.

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

``system`` may be empty. ``repair`` is what is said to an answer that is no JSON, or not of the
schema; it is given ``error``, too, which no file declares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel, freeze
from coevo_gym.prompts.template import (
    FOLDER,
    check_blocks,
    check_inputs,
    packaged,
    read_header,
    write_block,
)

BLOCKS = ("system", "user", "repair")
ERROR = "error"
"""The input of every ``repair`` block."""


class InquiryHeader(FrozenModel):
    """What the file of an inquiry's prompt says about itself.

    Attributes:
        kind: tells it from the prompt of a benchmark.
        name: room and file, such as ``"coevolve/summary"``.
        version: counts up when the text changes.
        answer_schema: name of the model that answers must fit, for people; ``schema`` in the file.
        inputs: names of the values that it is filled in with.
    """

    kind: Literal["inquiry"]
    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    answer_schema: str = Field(min_length=1, alias="schema")
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class InquiryPrompt:
    """The words of an inquiry.

    Attributes:
        header: what the file says about itself.
        text: the file.
    """

    header: InquiryHeader
    text: str

    @property
    def hash(self) -> str:
        """sha256 of the file's text, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Name and version, such as ``"coevolve/summary@1"``."""
        return f"{self.header.name}@{self.header.version}"

    def system(self, inputs: Mapping[str, Any]) -> str:
        """The system message; "" for none."""
        return self._write("system", inputs)

    def user(self, inputs: Mapping[str, Any]) -> str:
        """The question."""
        return self._write("user", inputs)

    def repair(self, inputs: Mapping[str, Any], error: str) -> str:
        """What is said to an answer that cannot be used.

        Args:
            inputs: those of the question.
            error: what is wrong with it, in words.
        """
        return self._write("repair", inputs, {ERROR: error})

    def _write(
        self, block: str, inputs: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> str:
        declared = set(self.header.inputs)
        if inputs.keys() != declared:
            wanted, given = (", ".join(sorted(names)) or "none" for names in (declared, inputs))
            raise ConfigError(
                f"The prompt {self.label} declares the inputs {wanted}, and is given {given}."
            )
        try:
            values = {name: freeze(value) for name, value in inputs.items()}
        except ValueError as error:
            raise ConfigError(
                f"An input of the prompt {self.label} is not JSON: {error}"
            ) from error
        advice = "Do its inputs have the form that the text expects?"
        return write_block(self.text, block, {**values, **(more or {})}, self.label, advice)


def load_inquiry(name: str | Path) -> InquiryPrompt:
    """The prompt of an inquiry.

    Args:
        name: ``room/name`` of one that comes with coevo_gym, ``package:file`` of one that comes
            with another package, or the path of a file that ends in ``.j2``.

    Raises:
        ConfigError: if there is no such prompt, or its file is not as it should be.
    """
    name = str(name)
    if ":" in name:
        path = packaged(name)
    elif name.endswith(".j2"):
        path = Path(name)
    else:
        path = FOLDER / f"{name}.j2"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = sorted(f"{file.parent.name}/{file.stem}" for file in FOLDER.glob("*/*.j2"))
        raise ConfigError(
            f"There is no prompt {name!r} ({error.strerror}). Choose one of "
            f"{', '.join(known) or 'none'}, or give the path of a .j2 file, or package:file."
        ) from error
    return parse_inquiry(text, source=str(path))


def parse_inquiry(text: str, *, source: str = "the prompt") -> InquiryPrompt:
    """The prompt that a text holds.

    Args:
        text: header and blocks, as in the module's docstring.
        source: what to call it in errors.

    Raises:
        ConfigError: if the header, the blocks or the inputs are not as they should be.
    """
    header = read_header(text, InquiryHeader, source)
    used = check_blocks(text, BLOCKS, source)
    if ERROR in header.inputs:
        raise ConfigError(f"{source} declares {ERROR!r}, which every repair block is given anyway.")
    check_inputs(used - {ERROR}, set(header.inputs), (), source)
    return InquiryPrompt(header, text)
