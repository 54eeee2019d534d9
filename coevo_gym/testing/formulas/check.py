"""Numbers from elsewhere against what the formulas say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.reading import read_file

Inputs = Mapping[str, Any]
Formula = Callable[[Inputs], Any]
"""From the inputs of an entry to what comes out."""

TOLERANCE = 1e-8
"""Numbers agree if they differ by no more."""


class Difference(NamedTuple):
    """An entry that a formula does not agree with; ``found`` says why if it raised an error."""

    id: str
    formula: str
    expected: Any
    found: Any


class Checked(NamedTuple):
    """How the selected entries of a file came out.

    Attributes:
        agree: agreeing entries of each formula.
        differ: those that do not agree.
        unknown: selected entries of formulas that there are not, by name.
        left_out: entries that were not selected.
    """

    agree: Mapping[str, int]
    differ: Sequence[Difference]
    unknown: Mapping[str, int]
    left_out: int

    @property
    def fine(self) -> bool:
        """Whether something was selected, all of it is known, and all of it agrees."""
        return bool(self.agree) and not self.differ and not self.unknown


def read_vectors(path: Path) -> list[Mapping[str, Any]]:
    """The entries of a file of numbers.

    Raises:
        ConfigError: if it cannot be read, or an entry lacks a part.
    """
    try:
        data = json.loads(read_file(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    entries = data.get("vectors") if isinstance(data, Mapping) else data
    if not isinstance(entries, list):
        raise ConfigError(f"{path} holds no list of entries, and no object with a list 'vectors'.")
    for number, entry in enumerate(entries):
        wanted = ("id", "formula", "inputs", "expected")
        missing = [key for key in wanted if not isinstance(entry, Mapping) or key not in entry]
        if missing:
            raise ConfigError(f"Entry {number} of {path} has no {' and no '.join(missing)}.")
    return entries


def check(
    entries: Sequence[Mapping[str, Any]],
    formulas: Mapping[str, Formula],
    only: Sequence[str] = (),
) -> Checked:
    """Compare entries with what the formulas say of their inputs.

    Args:
        entries: of :func:`read_vectors`.
        formulas: by name.
        only: beginnings of the names to select; all if there are none.
    """
    agree: dict[str, int] = {}
    unknown: dict[str, int] = {}
    differ: list[Difference] = []
    left_out = 0
    for entry in entries:
        name = entry["formula"]
        if only and not name.startswith(tuple(only)):
            left_out += 1
        elif name not in formulas:
            unknown[name] = unknown.get(name, 0) + 1
        else:
            agree.setdefault(name, 0)
            try:
                found = formulas[name](entry["inputs"])
            except Exception as error:  # whatever a formula raises is a difference to be listed
                found = f"{type(error).__name__}: {error}"
            if equal(found, entry["expected"]):
                agree[name] += 1
            else:
                differ.append(Difference(entry["id"], name, entry["expected"], found))
    return Checked(agree, differ, unknown, left_out)


def equal(found: Any, expected: Any) -> bool:
    """Whether two JSON values are the same; numbers within :data:`TOLERANCE`, tuples as lists."""
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == expected.keys()
            and all(equal(found[key], value) for key, value in expected.items())
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(equal(a, b) for a, b in zip(found, expected, strict=True))
        )
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(found, expected, rel_tol=0.0, abs_tol=TOLERANCE)
    return type(found) is type(expected) and bool(found == expected)
