"""``coevo doctor --escape-suite``: attempts to get out of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from coevo_gym.benchmark import benchmark_specs
from coevo_gym.cli.benchmarks import setup_of
from coevo_gym.cli.output import FAILED, console, errors, print_json

if TYPE_CHECKING:
    from coevo_gym.escapes import Suite


def try_to_escape(as_json: bool) -> None:
    """Run all attempts to get out of the sandbox; fails if one gets through."""
    from coevo_gym.escapes import Row, Verdict, compare, report
    from coevo_gym.sandbox import strongest

    found = strongest()
    results: dict[str, list[Row]] = {}
    for suite in escape_suites():
        results[suite.name] = rows = []
        with suite.setup(found.level) as setup, errors.status(f"{suite.name} ...") as status:
            for row in compare(suite.payloads, setup):
                rows.append(row)
                status.update(f"{suite.name}: {len(rows)} of {len(suite.payloads)} attempts")
        if not as_json:
            console.print(report.as_table(suite.name, rows))
    everything = [row for rows in results.values() for row in rows]
    if as_json:
        print_json(report.as_data(found, results))
    else:
        console.print(report.summary(found, everything), markup=False, soft_wrap=True)
    if any(row.verdict is Verdict.GOT_THROUGH for row in everything):
        raise typer.Exit(FAILED)


def escape_suites() -> Iterator[Suite]:
    """The generic suite, and those of benchmarks that run code and are ready for it."""
    from coevo_gym.escapes import generic_suite

    yield generic_suite()
    for spec in benchmark_specs():
        make = getattr(setup_of(spec), "escape_suite", None) if spec.setup else None
        if make is not None and setup_of(spec).installation().ready:
            yield make()
