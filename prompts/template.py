"""What all prompt files share: a header in TOML, blocks in Jinja2, inputs that it declares.

Values are put in as they are: text that comes from elsewhere is never read as a template, and
nothing is escaped.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel, freeze

FOLDER = Path(__file__).parent
"""Where the prompts that come with coevo_gym lie."""

_HEADER = re.compile(r"\A\{#-?(.*?)-?#\}", re.DOTALL)


class PromptHeader(FrozenModel):
    """What every prompt file says about itself.

    Attributes:
        name: of the benchmark it is for, or room and file, such as ``"coevolve/guide"``.
        version: counts up when the text changes.
        inputs: names of the values that it is filled in with.
    """

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    inputs: tuple[str, ...] = ()


HeaderT = TypeVar("HeaderT", bound=PromptHeader)


@dataclass(frozen=True)
class PromptFile(Generic[HeaderT]):
    """What every prompt is: a file, and what it says about itself.

    Attributes:
        header: what the file says about itself.
        text: the file.
    """

    header: HeaderT
    text: str

    @property
    def hash(self) -> str:
        """sha256 of the file's text, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def declared(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the inputs that the file declares."""
        return {name: value for name, value in inputs.items() if name in self.header.inputs}

    @property
    def label(self) -> str:
        """Name and version, such as ``"webshop@1"``."""
        return f"{self.header.name}@{self.header.version}"


def packaged(name: str) -> Path:
    """The file that ``package:file`` names; it need not exist.

    Raises:
        ConfigError: if there is no such package.
    """
    package, _, file = name.partition(":")
    try:
        return Path(str(files(package) / file))
    except (ImportError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"There is no prompt {name!r}: the package {package!r} cannot be found ({error})."
        ) from error


def text_of(path: Path) -> str:
    """The text of a prompt file.

    Raises:
        OSError: if it cannot be read.
        ConfigError: if it is not UTF-8, or nothing can have this name.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"The prompt {path} is not UTF-8 text: {error.reason}.") from error
    except ValueError as error:
        raise ConfigError(f"No prompt can be called {str(path)!r}: {error}.") from error


def read_prompt(name: str) -> tuple[str, str]:
    """The text of a prompt file of a method, and what to call it in errors.

    Args:
        name: ``room/name`` of one that comes with coevo_gym, ``package:file`` of one that comes
            with another package, or the path of a file that ends in ``.j2``.

    Raises:
        ConfigError: if there is no such file.
    """
    if ":" in name:
        path = packaged(name)
    else:
        path = Path(name) if name.endswith(".j2") else FOLDER / f"{name}.j2"
    try:
        return text_of(path), str(path)
    except OSError as error:
        known = sorted(f"{file.parent.name}/{file.stem}" for file in FOLDER.glob("*/*.j2"))
        raise ConfigError(
            f"There is no prompt {name!r} ({error.strerror}). Choose one of {', '.join(known)}, or "
            "give the path of a .j2 file, or package:file."
        ) from error


def read_header(text: str, kind: type[HeaderT], source: str) -> HeaderT:
    """What a prompt file says about itself.

    Args:
        text: the file.
        kind: the model of such headers.
        source: what to call the file in errors.

    Raises:
        ConfigError: if there is no header, or it is not as it should be.
    """
    match = _HEADER.match(text)
    if match is None:
        raise ConfigError(f"{source} must begin with a header {{# name = … #}} in TOML.")
    try:
        return kind(**tomllib.loads(match[1]))
    except (ValueError, TypeError, RecursionError) as error:  # of TOML and of the model, too
        raise ConfigError(f"The header of {source} is not as it should be: {error}") from error


def check_blocks(
    text: str, blocks: Collection[str], source: str, *, optional: Collection[str] = ()
) -> set[str]:
    """Make sure that a prompt file has these blocks and no other; returns the inputs it uses.

    Args:
        text: the file.
        blocks: the blocks that it must have.
        source: what to call the file in errors.
        optional: blocks that it may have, too.

    Raises:
        ConfigError: if it has not, or is no template.
    """
    try:
        used = meta.find_undeclared_variables(_environment().parse(text))
        found = set(_compiled(text).blocks)
    except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # A template becomes Python code, which has limits of its own.
        raise ConfigError(f"{source} is not a Jinja2 template: {error}") from error
    if found - set(optional) != set(blocks):
        raise ConfigError(
            f"{source} must have the blocks {', '.join(blocks)}, actual: {', '.join(sorted(found))}"
        )
    return used


def has_block(text: str, block: str) -> bool:
    """Return whether a prompt file has a block."""
    return block in _compiled(text).blocks


def check_inputs(used: set[str], declared: set[str], known: Collection[str], source: str) -> None:
    """Make sure that a prompt file declares the inputs that it uses.

    Args:
        used: names that its blocks use.
        declared: names in its header.
        known: what such a prompt is given; empty where a file may declare what it likes.
        source: what to call the file in errors.

    Raises:
        ConfigError: if it does not.
    """
    for problem, names in (
        ("uses, but does not declare, the input", used - declared),
        ("declares, but does not use, the input", declared - used),
        ("declares an input that no prompt is given:", declared - set(known or declared)),
    ):
        if names:
            there = f" There are: {', '.join(known)}." if known else ""
            raise ConfigError(f"{source} {problem} {', '.join(sorted(names))}.{there}")


def frozen_inputs(
    inputs: Mapping[str, Any], declared: Collection[str], label: str
) -> dict[str, Any]:
    """The inputs of a prompt, made sure to be those that it declares, and JSON.

    Nothing but JSON gets into a prompt: a task, say, would bring its solution along.

    Raises:
        ConfigError: if they are not.
    """
    if inputs.keys() != set(declared):
        wanted, given = (", ".join(sorted(names)) or "none" for names in (declared, inputs))
        raise ConfigError(f"The prompt {label} declares the inputs {wanted}, and is given {given}.")
    try:
        return {name: freeze(value) for name, value in inputs.items()}
    except ValueError as error:
        raise ConfigError(f"An input of the prompt {label} is not JSON: {error}") from error


def write_block(text: str, block: str, values: Mapping[str, Any], source: str, advice: str) -> str:
    """One block of a prompt file, filled in.

    Raises:
        ConfigError: if it cannot be written; the message ends with ``advice``.
    """
    template = _compiled(text)
    try:
        context = template.new_context(dict(values))
        return "".join(template.blocks[block](context)).strip("\n")
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Block {block!r} of the prompt {source!r} cannot be written: {error}. {advice}"
        ) from error


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
