"""``coevo doctor --escape-suite``: attempts to escape from the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from coevo_gym.cli.output import FAILED, console, errors, print_json
from coevo_gym.cli.sources import setup_of
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import ConfigError

if TYPE_CHECKING:
    from coevo_gym.escapes import Suite
    from coevo_gym.sandbox import Level


def try_to_escape(as_json: bool, level: Level | None = None) -> None:
    """Run all attempts to escape from the sandbox, and fail if one succeeds.

    Args:
        as_json: print JSON.
        level: isolation level; None for the strongest one available here.

    Raises:
        ConfigError: if the level, or any level, is not available here.
    """
    from coevo_gym.escapes import AttackRow, AttackVerdict, compare, report
    from coevo_gym.sandbox import probe, strongest

    if level is None:
        found = strongest()
    else:
        (found,) = (finding for finding in probe() if finding.level is level)
        if not found.holds:
            raise ConfigError(f"The level {level.value!r} is not available here: {found.detail}")
    results: dict[str, list[AttackRow]] = {}
    for suite in escape_suites():
        results[suite.name] = rows = []
        with suite.setup(found.level) as setup, errors.status(f"{suite.name} ...") as status:
            for row in compare(suite.payloads, setup, found.level):
                rows.append(row)
                status.update(f"{suite.name}: {len(rows)} of {len(suite.payloads)} attempts")
        if not as_json:
            console.print(report.as_table(suite.name, rows))
    everything = [row for rows in results.values() for row in rows]
    if as_json:
        print_json(report.as_data(found, results))
    else:
        console.print(report.summary(found, everything), markup=False, soft_wrap=True)
    if any(row.verdict is AttackVerdict.GOT_THROUGH for row in everything):
        raise typer.Exit(FAILED)


def escape_suites() -> Iterator[Suite]:
    """Return the generic suite and those of installed benchmarks that run code."""
    from coevo_gym.escapes import generic_suite

    yield generic_suite()
    for spec in benchmark_specs():
        if spec.escapes and setup_of(spec).installation().ready:
            module, _, make = spec.escapes.partition(":")
            yield getattr(import_module(module), make)()
