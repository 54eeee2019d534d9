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

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field, ValidationError

from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import View

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

_FOLDER = Path(__file__).parent
_HEADER = re.compile(r"\A\{#-?(.*?)-?#\}", re.DOTALL)


class Header(FrozenModel):
    """What a prompt file says about itself.

    Attributes:
        name: of the benchmark it is for.
        version: counts up when the text changes.
        answer: how an answer holds its action.
        inputs: those of :data:`INPUTS` that the text uses.
    """

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    answer: AnswerForm
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class PromptTemplate:
    """The words in which a model is told about an env.

    Attributes:
        header: what the file says about itself.
        text: the file.

    Example:
        >>> prompt = load_prompt("alfworld")
        >>> prompt.header.answer, len(prompt.hash)
        ('action', 64)
    """

    header: Header
    text: str

    @property
    def hash(self) -> str:
        """sha256 of the file's text, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

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
        template = _compiled(self.text)
        values = {
            "instruction": view.instruction,
            "observation": view.observation,
            "info": view.info,
            "before": view.history[-1].info if view.history else {},
            "thinking": thinking,
        }
        try:
            context = template.new_context(values)
            return "".join(template.blocks[block](context)).strip("\n")
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Block {block!r} of the prompt {self.header.name!r} cannot be written: {error}. "
                "Is the prompt meant for this env?"
            ) from error


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
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.j2")))
        raise ConfigError(
            f"There is no prompt {str(name)!r} ({error.strerror}). Choose one of {known}, or give "
            "the path of a .j2 file."
        ) from error
    return parse_prompt(text, source=str(path))


def _file_of(name: str) -> Path:
    """The file of a benchmark's prompt, which need not exist: its own, or the one here."""
    spec = find_spec(name)
    if spec is None or not spec.prompt:
        return _FOLDER / f"{name}.j2"
    package, _, file = spec.prompt.partition(":")
    return Path(str(files(package) / file))


def parse_prompt(text: str, *, source: str = "the prompt") -> PromptTemplate:
    """The prompt that a text holds.

    Args:
        text: header and blocks, as in the module's docstring.
        source: what to call it in errors.

    Raises:
        ConfigError: if the header, the blocks or the inputs are not as they should be.
    """
    header = _header(text, source)
    try:
        tree = _environment().parse(text)
        blocks = set(_compiled(text).blocks)
    except TemplateError as error:
        raise ConfigError(f"{source} is not a Jinja2 template: {error}") from error
    if blocks != set(BLOCKS):
        found = ", ".join(sorted(blocks))
        raise ConfigError(f"{source} must have the blocks {', '.join(BLOCKS)}, actual: {found}")
    used, declared = meta.find_undeclared_variables(tree), set(header.inputs)
    for problem, names in (
        ("uses, but does not declare, the input", used - declared),
        ("declares, but does not use, the input", declared - used),
        ("declares an input that no prompt is given:", declared - set(INPUTS)),
    ):
        if names:
            listed = ", ".join(sorted(names))
            raise ConfigError(f"{source} {problem} {listed}. There are: {', '.join(INPUTS)}.")
    return PromptTemplate(header, text)


def _header(text: str, source: str) -> Header:
    match = _HEADER.match(text)
    if match is None:
        raise ConfigError(f"{source} must begin with a header {{# name = … #}} in TOML.")
    try:
        return Header(**tomllib.loads(match[1]))
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        raise ConfigError(f"The header of {source} is not as it should be: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["from_json"] = json.loads
    environment.filters["to_json"] = _to_json
    return environment


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=64)
def _compiled(text: str) -> Template:
    return _environment().from_string(text)
