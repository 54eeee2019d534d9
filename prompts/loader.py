"""A loader for prompt files: Jinja2 templates with a header that declares the inputs.

A prompt file begins with a Jinja comment that contains TOML, and has three or more blocks::

    {#
    name = "kettle"
    version = 1
    answer = "action"
    inputs = ["observation", "thinking"]
    #}
    {% block system %}…{% endblock %}
    {% block first %}{{ observation }}{% endblock %}
    {% block turn %}{{ observation }}{% endblock %}

Two more blocks are for models that explore. ``explore`` replaces ``system``: it describes the
actions and the format, without a task to solve. ``tasks`` describes valid tasks in the env without
using inputs.

If the env's actions are calls of tools, the header names the info key that contains the tools
(``tools = "bfcl.tools"``), and the block ``native`` replaces ``system`` for models that get the
tools from their chat template or endpoint. It does not describe the tools or the notation of calls.

A prompt may show past steps itself, with the input ``past``. Each step then has a single message,
without a chat before it: ``turn`` if there are steps to show, else ``first``. Such a prompt needs
``policy.chat.history = "prompt"``.

Values are inserted unchanged: a task's text is never read as a template, and nothing is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notations import NOTATIONS
from coevo_gym.core.registry import ANSWER_FORMS, suggest
from coevo_gym.core.trajectory import Cue, View
from coevo_gym.prompts.template import (
    FOLDER,
    PromptFile,
    PromptHeader,
    check_prompt_body,
    has_block,
    package_path,
    parse_header,
    read_text,
    render_block,
)

AnswerForm = str
"""Answer forms: the action is between ``<action>`` tags (``action``), or the whole text is the
action (``text``). With ``code``, the text is a program, of which no part may run alone if the
answer was cut off. Other names are in :data:`coevo_gym.core.registry.ANSWER_FORMS`."""
FORMS = ("action", "text", "code")
"""The answer forms that ``prompts/answers.py`` reads."""

AnswerStyle = Literal["plain", "react", "hermes", "qwen3_coder", "llama3", "pythonic", "openai"]
"""Answer styles: the prompt's usual form, a ``Thought: …`` line before it (ReAct, Yao et al.,
arXiv 2210.03629), or calls of tools in one of :data:`coevo_gym.core.notations.NOTATIONS`."""

BLOCKS = ("system", "first", "turn")
EXPLORE, TASKS, NATIVE = "explore", "tasks", "native"
"""The optional blocks of a prompt file."""
INPUTS = {
    "instruction": "the task's instruction; in a dialogue, the latest request",
    "observation": "the env's observation",
    "info": "the public keys of the info that came with the observation",
    "before": "the info of the previous step; empty at the first step",
    "thinking": "true if the model should think before it answers",
    "style": "answer style: plain, react (a line with a thought first), or a notation for calls",
    "cues": "the cues for the system message",
    "past": "the last steps to show: number (from 1), observation and action of each",
    "taken": "number of steps taken so far",
    "opening": "the first observation of the episode",
}
"""The inputs that a prompt file may declare."""


class Header(PromptHeader):
    """The header of a prompt file.

    Attributes:
        answer: the form of answers.
        inputs: the names in :data:`INPUTS` that the text uses.
        tools: info key with the tools that the model can call, as the JSON text of a chat
            request's ``tools``; "" if actions are not calls of tools.
        max_turn_characters: length of ``turn`` above which ``first`` replaces it, in a prompt that
            shows past steps itself; None for no limit.
    """

    answer: AnswerForm
    inputs: tuple[str, ...]
    tools: str = ""
    max_turn_characters: int | None = Field(default=None, ge=1)

    @field_validator("answer")
    @classmethod
    def _check_answer(cls, name: str) -> str:
        if name not in FORMS and name not in ANSWER_FORMS.names():
            known = (*FORMS, *ANSWER_FORMS.names())
            raise ValueError(f"there is no answer form {name!r}. {suggest(name, known)}")
        return name


@dataclass(frozen=True)
class PromptTemplate(PromptFile[Header]):
    """A prompt template that describes an env to a model.

    Attributes:
        exploring: True if the model explores. If the file has a block ``explore``, it then replaces
            ``system``.

    Example:
        >>> prompt = load_prompt("alfworld")
        >>> prompt.header.answer, len(prompt.hash)
        ('action', 64)
    """

    exploring: bool = False

    @property
    def for_explorers(self) -> PromptTemplate:
        """This template's variant for models that explore."""
        return replace(self, exploring=True)

    @property
    def task_rules(self) -> str:
        """The description of valid tasks in the env, or "" if the prompt file has none."""
        if not has_block(self.text, TASKS):
            return ""
        return render_block(self.text, TASKS, {}, self.header.name, "Does the block use an input?")

    def system_text(
        self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain"
    ) -> str:
        """Return the system message for the start of an episode, or "" if there is none.

        The cues replace the input ``cues`` if the file declares it, or else are added at the end.
        """
        block = EXPLORE if self.exploring and has_block(self.text, EXPLORE) else "system"
        if style in NOTATIONS and has_block(self.text, NATIVE):
            block = NATIVE
        text = self._render(block, view, thinking, style)
        if "cues" in self.header.inputs:
            return text
        return "\n\n".join(filter(None, [text, _format_cues(view.cues)]))

    def first_text(
        self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain"
    ) -> str:
        """Return the user message for the start of an episode."""
        return self._render("first", view, thinking, style)

    def turn_text(self, view: View, *, thinking: bool = False, style: AnswerStyle = "plain") -> str:
        """Return the user message for any turn after the first."""
        if self.shows_past:
            raise ConfigError(
                f"The prompt {self.label} shows past steps itself, in a single message, so it "
                "cannot be a turn of a chat. Set policy.chat.history = 'prompt'."
            )
        return self._render("turn", view, thinking, style)

    @property
    def shows_past(self) -> bool:
        """True if the block ``turn`` shows past steps, so that the prompt is a single message."""
        return "past" in self.header.inputs

    def single_text(
        self, view: View, n_past: int, *, thinking: bool = False, style: AnswerStyle = "plain"
    ) -> str:
        """Return the only user message of a step, which shows up to ``n_past`` past steps.

        It is the block ``turn``, or ``first`` if there is no step to show or ``turn`` is longer
        than the header allows.
        """
        n_taken = len(view.history)
        recent = view.history[max(0, n_taken - n_past) :]
        if not recent:
            return self.first_text(view, thinking=thinking, style=style)
        past = [
            {"number": number, "observation": step.observation, "action": step.action}
            for number, step in enumerate(recent, n_taken - len(recent) + 1)
        ]
        text = self._render("turn", view, thinking, style, past)
        limit = self.header.max_turn_characters
        if limit is not None and len(text) > limit:
            return self.first_text(view, thinking=thinking, style=style)
        return text

    def _render(
        self,
        block: str,
        view: View,
        thinking: bool,
        style: AnswerStyle,
        past: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        values = {
            "instruction": view.instruction,
            "observation": view.observation,
            "info": view.info,
            "before": view.history[-1].info if view.history else {},
            "thinking": thinking,
            "style": style,
            "cues": _format_cues(view.cues),
            "past": past,
            "taken": len(view.history),
            "opening": view.history[0].observation if view.history else view.observation,
        }
        advice = "Is the prompt meant for this env?"
        return render_block(self.text, block, values, self.header.name, advice)


def _format_cues(cues: Sequence[Cue]) -> str:
    """Format cues for a system message: lists below headings, and other cues as paragraphs."""
    parts = []
    for heading, group in groupby((c for c in cues if c.place == "system"), lambda c: c.heading):
        texts = [cue.text for cue in group]
        parts += ["\n".join([heading, *(f"- {text}" for text in texts)])] if heading else texts
    return "\n\n".join(parts)


def load_prompt(name: str | Path) -> PromptTemplate:
    """Load a benchmark's prompt, or the prompt in a file.

    Args:
        name: a benchmark's name, or a file path that ends in ``.j2``.

    Raises:
        ConfigError: if the prompt does not exist or its file is invalid.
    """
    path = Path(name)
    if path.suffix != ".j2":
        spec = find_spec(str(name))
        own = spec.prompt if spec is not None else ""
        path = package_path(own) if own else FOLDER / f"{name}.j2"
    try:
        text = read_text(path)
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.j2")))
        raise ConfigError(
            f"There is no prompt {str(name)!r} ({error.strerror}). Choose one of {known}, or pass "
            "the path to a .j2 file."
        ) from error
    return parse_prompt(text, source=str(path))


def parse_prompt(text: str, *, source: str = "the prompt") -> PromptTemplate:
    """Parse the text of a prompt file.

    Raises:
        ConfigError: if the header, the blocks or the inputs are invalid.
    """
    header = parse_header(text, Header, source)
    optional = (EXPLORE, TASKS, NATIVE)
    check_prompt_body(text, header.inputs, BLOCKS, source, optional=optional, known=INPUTS)
    if header.tools and not has_block(text, NATIVE):
        raise ConfigError(f"{source} has the header field tools, so it needs the block {NATIVE}.")
    return PromptTemplate(header, text)
