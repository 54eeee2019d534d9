"""``coevo compare``: compare two policies on the same tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    MAX_TYPES,
    AsJson,
    format_cell,
    print_json,
    print_table,
    say,
    say_to_stderr,
)
from coevo_gym.cli.sources import eval_names, make_completer, run_names

if TYPE_CHECKING:
    from coevo_gym.runs.evals.comparison import ChangedTask, ComparedType, Comparison

_NAMES = make_completer(run_names, eval_names)
Side = Annotated[
    str,
    typer.Argument(help="Name or folder of a run or an evaluation.", autocompletion=_NAMES),
]


def compare(
    a: Side,
    b: Annotated[
        str | None,
        typer.Argument(
            help="Run or evaluation to compare with. Omit it to compare two arms of one run.",
            autocompletion=_NAMES,
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="Arm to compare: an arm's name, 'warm-up' or 'random'. Pass --arm twice to set "
            "both sides. Default: each run's last arm, or the first and last arms if only one "
            "run is given."
        ),
    ] = None,
    shared_tasks: Annotated[
        bool,
        typer.Option(
            "--shared-tasks",
            help="If the sides were evaluated on different panels, compare them on the tasks that "
            "both panels contain.",
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print at most N tasks for each policy.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Compare policy B with policy A on the tasks that both were evaluated on.

    The command prints the difference with its confidence interval and a significance test, success
    by task type, and the tasks that only one side solves. With --arm warm-up as side A, you see the
    tasks that the policy learned to solve in training and those that it forgot how to solve. For a
    run, the command uses an arm's last evaluation, or its last N if evaluation.last = N. If both
    sides have scores on the tasks in evaluation.final, the command prints these scores as well.

    The command refuses to compare sides with different panels, unless you pass --shared-tasks. If
    the two sides used different protocols, it first lists the settings that differ.

    For example:

      coevo compare quickstart

      coevo compare quickstart --arm warm-up --arm static

      coevo compare quickstart other-run --arm static

      coevo compare quickstart evals/gpt-on-webshop --json
    """
    from coevo_gym.runs.evals.comparison import compare as compare_sides
    from coevo_gym.runs.evals.sides import find_final_sides, find_sides, middle_arms

    comparison = compare_sides(*find_sides(a, b, arm or ()), shared_tasks=shared_tasks)
    final = {
        name: compare_sides(*pair, shared_tasks=shared_tasks)
        for name, pair in find_final_sides(a, b, arm or ()).items()
    }
    if as_json:
        of_final = {name: asdict(one) for name, one in final.items()}
        print_json({**asdict(comparison), "final": of_final})
        return
    if b is None and not arm and (others := middle_arms(a)):
        say_to_stderr(
            f"{a} has {len(others) + 2} arms; this compares the first with the last. For "
            f"{others[0]}: coevo compare {a} --arm {others[0]}"
            + (f". The other arms: {', '.join(others[1:])}." if others[1:] else "")
        )
    say(str(comparison))
    if comparison.has_several_samples:
        say("Below, a task counts as solved if at least half of its episodes succeed.")
    for name, one in final.items():
        say(
            f"On {name}, scored once after training: A {one.success_a:.1%}, B {one.success_b:.1%}. "
            f"{one.describe_difference()}"
        )
    print_table(_contingency_table(comparison))
    for table in _type_tables(comparison.types):
        print_table(table)
    counts = Counter(one.kind for one in comparison.types)
    if fine := [kind for kind, n in counts.items() if n > MAX_TYPES]:
        say_to_stderr(f"To print success by {', '.join(fine)} as well, pass --json.")
    for title, tasks in (("B alone solves", comparison.won), ("A alone solves", comparison.lost)):
        _print_tasks(title, tasks, limit)


def _contingency_table(comparison: Comparison) -> Table:
    table = Table("", Column("B solves", justify="right"), Column("B fails", justify="right"))
    table.add_row("A solves", str(comparison.both), str(len(comparison.lost)))
    table.add_row("A fails", str(len(comparison.won)), str(comparison.neither))
    return table


def _type_tables(types: Sequence[ComparedType]) -> Iterator[Table]:
    """Yield a table of both policies' success rates for each kind of tag with several values."""
    for kind, group in groupby(types, key=lambda one: one.kind):
        rows = list(group)
        if not 1 < len(rows) <= MAX_TYPES:
            continue
        numbers = ("tasks", "A", "B", "B - A", "B alone", "A alone")
        table = Table(Column(kind, overflow="fold"), *(Column(n, justify="right") for n in numbers))
        for one in rows:
            table.add_row(
                escape(one.value),
                str(one.tasks),
                f"{one.success_a:.1%}",
                f"{one.success_b:.1%}",
                f"{100 * (one.success_b - one.success_a):+.1f}",
                str(one.won),
                str(one.lost),
            )
        yield table


def _print_tasks(title: str, tasks: Sequence[ChangedTask], limit: int) -> None:
    say(f"{title} {len(tasks)}:" if tasks else f"{title} none.")
    head = tasks[:limit]
    if not head:
        return
    longest = max(len(task.name) for task in head)
    several = any({task.success_a, task.success_b} - {0.0, 1.0} for task in head)
    table = Table(box=None, expand=True, show_header=several)
    table.add_column("task", no_wrap=True, min_width=longest)
    for side in ("A", "B") if several else ():
        table.add_column(side, justify="right", min_width=4)
    table.add_column("instruction", no_wrap=True, ratio=1)
    for task in head:
        rates = [f"{task.success_a:.0%}", f"{task.success_b:.0%}"] if several else []
        table.add_row(
            format_cell(task.name), *rates, format_cell(" ".join(task.instruction.split()))
        )
    print_table(table)
    if len(tasks) > len(head):
        say_to_stderr(f"and {len(tasks) - len(head)} more; pass --limit or --json to see them.")
