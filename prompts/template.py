"""What all prompt files share: a header in TOML, blocks in Jinja2, inputs that it declares.

Values are put in as they are: text that comes from elsewhere is never read as a template, and
nothing is escaped.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel

FOLDER = Path(__file__).parent
"""Where the prompts that come with coevo_gym lie."""

HeaderT = TypeVar("HeaderT", bound=FrozenModel)
_HEADER = re.compile(r"\A\{#-?(.*?)-?#\}", re.DOTALL)


def packaged(name: str) -> Path:
    """The file that ``package:file`` names; it need not exist.

    Raises:
        ConfigError: if there is no such package.
    """
    package, _, file = name.partition(":")
    try:
        return Path(str(files(package) / file))
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(
            f"There is no prompt {name!r}: the package {package!r} cannot be found ({error})."
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
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        raise ConfigError(f"The header of {source} is not as it should be: {error}") from error


def check_blocks(text: str, blocks: Collection[str], source: str) -> set[str]:
    """Make sure that a prompt file has these blocks and no other; returns the inputs it uses.

    Raises:
        ConfigError: if it has not, or is no template.
    """
    try:
        used = meta.find_undeclared_variables(_environment().parse(text))
        found = set(_compiled(text).blocks)
    except TemplateError as error:
        raise ConfigError(f"{source} is not a Jinja2 template: {error}") from error
    if found != set(blocks):
        raise ConfigError(
            f"{source} must have the blocks {', '.join(blocks)}, actual: {', '.join(sorted(found))}"
        )
    return used


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
