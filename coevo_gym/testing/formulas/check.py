"""Comparison of externally computed numbers with the results of the formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.reading import read_file

Inputs = Mapping[str, Any]
Formula = Callable[[Inputs], Any]
"""Function from the inputs of an entry to its result."""

TOLERANCE = 1e-8
"""Maximum absolute difference of numbers that agree."""


class Difference(NamedTuple):
    """An entry that differs from its formula; ``found`` is the error if the formula raised one."""

    id: str
    formula: str
    expected: Any
    found: Any


class Checked(NamedTuple):
    """The result of checking the selected entries of a file.

    Attributes:
        agree: number of agreeing entries by formula.
        differ: entries that do not agree.
        unknown: number of selected entries with an unknown formula, by name.
        left_out: number of entries that were not selected.
    """

    agree: Mapping[str, int]
    differ: Sequence[Difference]
    unknown: Mapping[str, int]
    left_out: int

    @property
    def fine(self) -> bool:
        """True if at least one entry was selected, and all are known and agree."""
        return bool(self.agree) and not self.differ and not self.unknown


def read_vectors(path: Path) -> list[Mapping[str, Any]]:
    """Read the entries of a file of numbers.

    Raises:
        ConfigError: if the file cannot be read, or an entry is incomplete.
    """
    try:
        data = json.loads(read_file(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    entries = data.get("vectors") if isinstance(data, Mapping) else data
    if not isinstance(entries, list):
        raise ConfigError(f"{path} contains no list of entries, and no object with 'vectors'.")
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
    """Compare entries with the results of the formulas.

    Args:
        entries: entries returned by :func:`read_vectors`.
        formulas: formulas by name.
        only: prefixes of the names to select; empty for all.
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
            except Exception as error:  # list any error of a formula as a difference
                found = f"{type(error).__name__}: {error}"
            if equal(found, entry["expected"]):
                agree[name] += 1
            else:
                differ.append(Difference(entry["id"], name, entry["expected"], found))
    return Checked(agree, differ, unknown, left_out)


def equal(found: Any, expected: Any) -> bool:
    """Return True if two JSON values are equal, with :data:`TOLERANCE` and tuples as lists."""
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
