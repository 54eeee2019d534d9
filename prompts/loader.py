"""Reading prompt files: Jinja2 with a header that says what the file is and needs.

A prompt file begins with a Jinja comment that holds TOML, and has three blocks::

    {#
    name = "kettle"
    version = 1
    answer = "action"
    inputs = ["observation", "thinking"]
    #}
    {% block system %}…{% endblock %}
    {% block first %}{{ observation }}{% endblock %}
    {% block turn %}{{ observation }}{% endblock %}

Values are put in as they are: a task's text is never read as a template, and nothing is escaped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import View
from coevo_gym.prompts.template import (
    FOLDER,
    PromptFile,
    PromptHeader,
    check_blocks,
    check_inputs,
    packaged,
    read_header,
    text_of,
    write_block,
)

AnswerForm = Literal["action", "text"]
"""How an answer holds its action: between ``<action>`` tags, or as the whole text."""

BLOCKS = ("system", "first", "turn")
INPUTS = {
    "instruction": "the task in words; in a dialogue, the latest request",
    "observation": "what the env says",
    "info": "the public keys of the env's info that came with it",
    "before": "the same of the step before; empty at first",
    "thinking": "whether the model shall think before it answers",
}
"""What a prompt file may declare as its inputs."""


class Header(PromptHeader):
    """What a prompt file says about itself.

    Attributes:
        answer: how an answer holds its action.
        inputs: those of :data:`INPUTS` that the text uses.
    """

    answer: AnswerForm
    inputs: tuple[str, ...]


class PromptTemplate(PromptFile[Header]):
    """The words in which a model is told about an env.

    Example:
        >>> prompt = load_prompt("alfworld")
        >>> prompt.header.answer, len(prompt.hash)
        ('action', 64)
    """

    def system(self, view: View, *, thinking: bool = False) -> str:
        """The system message, from the first view of an episode; "" for none."""
        return self._render("system", view, thinking)

    def first(self, view: View, *, thinking: bool = False) -> str:
        """The user message of an episode's first view."""
        return self._render("first", view, thinking)

    def turn(self, view: View, *, thinking: bool = False) -> str:
        """The user message of any later view."""
        return self._render("turn", view, thinking)

    def _render(self, block: str, view: View, thinking: bool) -> str:
        values = {
            "instruction": view.instruction,
            "observation": view.observation,
            "info": view.info,
            "before": view.history[-1].info if view.history else {},
            "thinking": thinking,
        }
        advice = "Is the prompt meant for this env?"
        return write_block(self.text, block, values, self.header.name, advice)


def load_prompt(name: str | Path) -> PromptTemplate:
    """The prompt of a benchmark, or the one in a file.

    Args:
        name: a benchmark's name, or the path of a file that ends in ``.j2``.

    Raises:
        ConfigError: if there is no such prompt, or its file is not as it should be.
    """
    path = Path(name)
    if path.suffix != ".j2":
        path = _file_of(str(name))
    try:
        text = text_of(path)
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.j2")))
        raise ConfigError(
            f"There is no prompt {str(name)!r} ({error.strerror}). Choose one of {known}, or give "
            "the path of a .j2 file."
        ) from error
    return parse_prompt(text, source=str(path))


def _file_of(name: str) -> Path:
    """The file of a benchmark's prompt, which need not exist: its own, or the one here."""
    spec = find_spec(name)
    if spec is None or not spec.prompt:
        return FOLDER / f"{name}.j2"
    return packaged(spec.prompt)


def parse_prompt(text: str, *, source: str = "the prompt") -> PromptTemplate:
    """The prompt that a text holds.

    Args:
        text: header and blocks, as in the module's docstring.
        source: what to call it in errors.

    Raises:
        ConfigError: if the header, the blocks or the inputs are not as they should be.
    """
    header = read_header(text, Header, source)
    used = check_blocks(text, BLOCKS, source)
    check_inputs(used, set(header.inputs), INPUTS, source)
    return PromptTemplate(header, text)
