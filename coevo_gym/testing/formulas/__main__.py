"""The command ``python -m coevo_gym.testing.formulas FILE [--only PREFIX,…]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.testing.formulas import FORMULAS
from coevo_gym.testing.formulas.check import check, read_vectors


def main(arguments: Sequence[str] | None = None) -> int:
    """Print which numbers agree; return 0 if all selected ones do, 1 if not, 2 for a bad file."""
    parser = argparse.ArgumentParser(
        prog="python -m coevo_gym.testing.formulas",
        description="Compare the numbers in a file with the results of the formulas. Exits with 0 "
        "if at least one entry was selected and all selected entries agree.",
    )
    parser.add_argument("file", type=Path, help="JSON of entries: id, formula, inputs, expected")
    parser.add_argument(
        "--only", default="", metavar="PREFIX,…", help="formulas whose names start with a prefix"
    )
    options = parser.parse_args(arguments)
    only = [prefix for prefix in options.only.split(",") if prefix]
    try:
        found = check(read_vectors(options.file), FORMULAS, only)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    differing = [entry.formula for entry in found.differ]
    for name, count in found.agree.items():
        print(f"{name}: {count} agree" + (f", {n} differ" if (n := differing.count(name)) else ""))
    for entry in found.differ:
        print(f"{entry.id} differs: expected {entry.expected!r:.300}, found {entry.found!r:.300}")
    for name, count in found.unknown.items():
        print(f"{name}: {count} unknown")
    print(
        f"{sum(found.agree.values())} agree, {len(found.differ)} differ, "
        f"{sum(found.unknown.values())} are of unknown formulas, {found.left_out} not selected"
    )
    return 0 if found.fine else 1


if __name__ == "__main__":
    sys.exit(main())
