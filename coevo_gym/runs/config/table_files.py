"""TOML files that define tables: reading, lists of seeds, and messages about mistakes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest

MAX_SEEDS = 10_000
"""Maximum number of seeds per table."""
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_seeds(text: str | None, usual: Sequence[int], place: str = "--seeds") -> tuple[int, ...]:
    """Parse a number or a list of seeds.

    Args:
        text: a number of seeds, or a list with commas and ranges; None for the default seeds.
        usual: the default seeds, fixed in advance. More seeds continue from the largest.
        place: option or key that the text comes from, for messages.

    Raises:
        ConfigError: if the text is invalid, contains a seed twice, or requests no seed or more than
            :data:`MAX_SEEDS`.

    Example:
        >>> parse_seeds("2", [7, 8, 9]), parse_seeds("5", [7, 8, 9]), parse_seeds("1-3,9", [7])
        ((7, 8), (7, 8, 9, 10, 11), (1, 2, 3, 9))
    """
    if text is None:
        return tuple(usual)
    text = text.strip()
    if re.fullmatch("[0-9]{1,9}", text):
        n, last = int(text), max(usual, default=0)
        parts: list[Sequence[int]] = [usual[:n], range(last + 1, last + 1 + n - len(usual))]
    else:
        parts = [
            _parse_range(part.strip(), f"{place} {text}") for part in text.rstrip(",").split(",")
        ]
    if sum(map(len, parts)) > MAX_SEEDS:
        raise ConfigError(f"{place} {text}: at most {MAX_SEEDS:,} seeds are allowed.")
    seeds = [seed for part in parts for seed in part]
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(
            f"{place} {text}: give at least one seed, each only once, and ranges from the smaller "
            "to the larger seed."
        )
    return tuple(seeds)


def _parse_range(part: str, where: str) -> Sequence[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConfigError(
            f"{where}: {part!r} is not a seed. Pass a number of seeds (such as 3) or a list "
            "of seeds (such as 401-420 or 1,4,9)."
        )
    first = int(match[1])
    return range(first, int(match[2] or first) + 1)


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
    details = error.errors()
    places = [detail["loc"] for detail in details]
    problems = (
        _explain(detail, model)
        for detail in details
        # A list without a valid entry is also reported as too short.
        if detail["type"] != "too_short"
        or not any(place[:-1][: len(detail["loc"])] == detail["loc"] for place in places)
    )
    return ConfigError(f"{path}: {'; '.join(problems)}")


def _explain(detail: ErrorDetails, model: type[BaseModel]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{place} is missing"
    if detail["type"] == "too_short":
        return f"{place} is empty. Add at least one entry"
    if detail["type"] != "extra_forbidden":
        value, message = detail["input"], message.removesuffix(".")
        short = isinstance(value, str | int | float) and str(value) not in message
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
