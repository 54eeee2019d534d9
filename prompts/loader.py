"""Reading prompt files: Jinja2 with a header that says what the file is and needs.

A prompt file begins with a Jinja comment that holds TOML, and has three blocks or more::

    {#
    name = "kettle"
    version = 1
    answer = "action"
    inputs = ["observation", "thinking"]
    #}
    {% block system %}…{% endblock %}
    {% block first %}{{ observation }}{% endblock %}
    {% block turn %}{{ observation }}{% endblock %}

Two more blocks are for models that explore. ``explore`` takes the place of ``system``: actions and
format, without a word about a task to solve. ``tasks`` says what makes a task valid here, and uses
no inputs.

Values are put in as they are: a task's text is never read as a template, and nothing is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import Cue, View
from coevo_gym.prompts.template import (
    FOLDER,
    PromptFile,
    PromptHeader,
    check_blocks,
    check_inputs,
    has_block,
    packaged,
    read_header,
    text_of,
    write_block,
)

AnswerForm = Literal["action", "text"]
"""How an answer holds its action: between ``<action>`` tags, or as the whole text."""

AnswerStyle = Literal["plain", "react"]
"""How an answer is to be written: as the prompt's usual form says, or with a line ``Thought: …``
before that (ReAct, Yao et al., arXiv 2210.03629)."""

BLOCKS = ("system", "first", "turn")
EXPLORE, TASKS = "explore", "tasks"
"""Blocks that a prompt file may have beside them."""
INPUTS = {
    "instruction": "the task in words; in a dialogue, the latest request",
    "observation": "what the env says",
    "info": "the public keys of the env's info that came with it",
    "before": "the same of the step before; empty at first",
    "thinking": "whether the model shall think before it answers",
    "style": "how an answer is to be written: plain, or react (a line with a thought first)",
    "cues": "what the agent is told beyond its task in the system message",
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


@dataclass(frozen=True)
class PromptTemplate(PromptFile[Header]):
    """The words in which a model is told about an env.

    Attributes:
        exploring: whether the reader is an explorer: the block ``explore`` takes the place of
            ``system`` if the file has one.

    Example:
        >>> prompt = load_prompt("alfworld")
        >>> prompt.header.answer, len(prompt.hash)
        ('action', 64)
    """

    exploring: bool = False

    @property
    def for_explorers(self) -> PromptTemplate:
        """The same words for a model that explores."""
        return replace(self, exploring=True)

    @property
    def tasks(self) -> str:
        """What makes a task valid in the env; "" if the file does not say."""
        if not has_block(self.text, TASKS):
            return ""
        return write_block(self.text, TASKS, {}, self.header.name, "Does the block use an input?")

    def system(self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain") -> str:
        """The system message, from the first view of an episode; "" for none.

        Cues for it stand where the file puts the input ``cues``, or else at the end.
        """
        block = EXPLORE if self.exploring and has_block(self.text, EXPLORE) else "system"
        text = self._render(block, view, thinking, style)
        if "cues" in self.header.inputs:
            return text
        return "\n\n".join(filter(None, [text, _told(view.cues)]))

    def first(self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain") -> str:
        """The user message of an episode's first view."""
        return self._render("first", view, thinking, style)

    def turn(self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain") -> str:
        """The user message of any later view."""
        return self._render("turn", view, thinking, style)

    def _render(self, block: str, view: View, thinking: bool, style: AnswerStyle) -> str:
        values = {
            "instruction": view.instruction,
            "observation": view.observation,
            "info": view.info,
            "before": view.history[-1].info if view.history else {},
            "thinking": thinking,
            "style": style,
            "cues": _told(view.cues),
        }
        advice = "Is the prompt meant for this env?"
        return write_block(self.text, block, values, self.header.name, advice)


def _told(cues: Sequence[Cue]) -> str:
    """The cues of a system message: paragraphs, and a list of those under one heading."""
    parts = []
    for heading, group in groupby((c for c in cues if c.place == "system"), lambda c: c.heading):
        texts = [cue.text for cue in group]
        parts += ["\n".join([heading, *(f"- {text}" for text in texts)])] if heading else texts
    return "\n\n".join(parts)


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
    used = check_blocks(text, BLOCKS, source, optional=(EXPLORE, TASKS))
    check_inputs(used, set(header.inputs), INPUTS, source)
    return PromptTemplate(header, text)
