"""TOML files that define tables: reading, and messages about mistakes in them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: if the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # includes invalid UTF-8
        raise ConfigError(f"Cannot read {path} as TOML: {error}") from error


def explain_file_errors(path: Path, error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Return an error that lists the mistakes in a file, with the place of each.

    An unknown key gets a suggestion from the keys that ``model``, the class of the whole file,
    knows at its place. Entries of lists are counted from 1.
    """
    problems = (_explain(detail, model) for detail in error.errors())
    return ConfigError(f"{path}: {'; '.join(problems)}")


def _explain(detail: ErrorDetails, model: type[BaseModel]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        value = detail["input"]
        short = isinstance(value, str | int | float) and detail["type"] != "missing"
        return f"{place or 'the table'}: {message}" + (f", got {value!r}" if short else "")
    key, root = str(detail["loc"][-1]), model
    for part in detail["loc"][:-1]:
        model = _class_of_part(model, part)
    if model is not root and key in root.model_fields:
        return f"{place}: {key!r} is a key of the whole file. Move it above the first [section]."
    return f"{place}: there is no key {key!r}. {suggest(key, list(model.model_fields))}"


def _class_of_part(model: type[BaseModel], part: str | int) -> type[BaseModel]:
    """Return the class of a part of a model; ``model`` itself for an index or a plain value."""
    field = model.model_fields.get(str(part))
    classes = [] if field is None else [field.annotation, *get_args(field.annotation)]
    inner = [one for one in classes if isinstance(one, type) and issubclass(one, BaseModel)]
    return inner[0] if inner else model
