"""``coevo audit``: show which tasks a run trains and validates on, and how they overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import AsJson, print_json, print_table, say, say_wrapped, show_progress
from coevo_gym.cli.sources import make_completer, run_names
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.reading import check_regular_file
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.runs.audits.peer_recipe import EvalDataset, PeerBenchmark

if TYPE_CHECKING:
    from coevo_gym.runs.audits.peer_audit import EvaluationDraws, PeerAudit
    from coevo_gym.view.model.run_audit import RunAudit

PEER = "verl-agent"
"""The code base whose runs can be audited by rule."""
_RULES = "Audit by rule"


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|verl-agent",
            help="Name or folder of your own run; or 'verl-agent', to audit a run of verl-agent, "
            "or of a fork that draws tasks by the same rules.",
            autocompletion=make_completer(run_names, lambda: [PEER]),
        ),
    ],
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCRIPT.sh",
            help="Launch script with overrides key=value. It is read, but not run.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    benchmark: Annotated[
        PeerBenchmark | None,
        typer.Option(
            help="Without a script: the benchmark. All other settings are those of verl-agent's "
            "scripts for GRPO.",
            rich_help_panel=_RULES,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the run (env.seed).", min=0, rich_help_panel=_RULES)
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(help="Tasks per iteration.", min=1, metavar="N", rich_help_panel=_RULES),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(help="Episodes per task.", min=1, metavar="N", rich_help_panel=_RULES),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help="Training iterations.", min=1, metavar="N", rich_help_panel=_RULES),
    ] = None,
    validate_every: Annotated[
        int | None,
        typer.Option(
            help="Iterations between evaluations; 0 for none during training.",
            min=0,
            metavar="N",
            rich_help_panel=_RULES,
        ),
    ] = None,
    val_batch: Annotated[
        int | None,
        typer.Option(help="Validation workers.", min=1, metavar="N", rich_help_panel=_RULES),
    ] = None,
    val_tasks: Annotated[
        int | None,
        typer.Option(
            help="Tasks per evaluation, a multiple of --val-batch (default: one batch).",
            min=1,
            metavar="N",
            rich_help_panel=_RULES,
        ),
    ] = None,
    eval_dataset: Annotated[
        EvalDataset | None,
        typer.Option(help="ALFWorld games to validate on.", rich_help_panel=_RULES),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Mean success rate, in (0, 1), for which the noise of an evaluation is simulated "
            "(default: 0.75).",
            rich_help_panel=_RULES,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which tasks a run trains and validates on, and how much they overlap.

    For your own run, the command reads which tasks were used for training and evaluation, and
    counts evaluated tasks that are training tasks, or that share a product, room or other scenario
    with one.

    For a run of verl-agent, the command needs only the settings: it draws all tasks again by
    verl-agent's rules, from the official data of ALFWorld or WebShop. It prints how often tasks
    repeat, how many validation tasks had been trained on, the standard error of one evaluation, and
    by how much the best of all evaluations is too high. Options replace the script's values.

    For example:

      coevo audit quickstart

      coevo audit verl-agent examples/gigpo_trainer/run_webshop.sh

      coevo audit verl-agent --benchmark alfworld --seed 1 --json
    """
    settings = {
        "seed": seed,
        "groups": groups,
        "group_size": group_size,
        "iterations": iterations,
        "validate_every": validate_every,
        "val_batch": val_batch,
        "val_tasks": val_tasks,
        "eval_dataset": eval_dataset,
    }
    if target != PEER:
        others = {"script": script, "benchmark": benchmark, "rate": rate, **settings}
        if names := [name for name, value in others.items() if value is not None]:
            raise ConfigError(
                f"{', '.join(names)} can only be passed for {PEER}. To audit the run {target}, "
                f"pass nothing else: coevo audit {target}"
            )
        _audit_own(target, as_json)
        return
    if (script is None) == (benchmark is None):
        raise ConfigError(f"Pass either a launch script or --benchmark: coevo audit {PEER} …")
    from coevo_gym.runs.audits.launch_script import read_launch_script
    from coevo_gym.runs.audits.peer_audit import audit_recipe
    from coevo_gym.runs.audits.peer_recipe import recipe_of_script, shipped_recipe

    if script is None:
        assert benchmark is not None
        recipe = shipped_recipe(benchmark, settings)
    else:
        check_regular_file(script)
        text = script.read_text(encoding="utf-8", errors="replace")
        recipe = recipe_of_script(read_launch_script(text, script.name), settings)
    with show_progress(f"drawing the tasks of {recipe.iterations} iterations"), forbid_setup():
        result = audit_recipe(recipe, **({} if rate is None else {"rate": rate}))
    if as_json:
        print_json(asdict(result))
    else:
        _print_peer_audit(result)


def _print_peer_audit(result: PeerAudit) -> None:
    from coevo_gym.runs.audits.peer_audit import LATE

    recipe = result.recipe
    table = Table("setting", Column("value", justify="right"), "from")
    for setting in recipe.settings:
        table.add_row(escape(setting.key), escape(setting.value), escape(setting.origin))
    print_table(table)
    training = result.training
    what = "games" if recipe.benchmark is PeerBenchmark.ALFWORLD else "goals"
    say(
        f"Training draws {training.draws:,} tasks: {training.distinct:,} different {what} of "
        f"{training.pool:,}, one of them {training.most} times."
    )
    if result.evaluations:
        print_table(_evaluations_table(result.evaluations))
    if noise := result.noise:
        last = result.evaluations[-1]
        n, late = len(result.evaluations), min(LATE, len(result.evaluations))
        for line in (
            f"Noise of a policy that never changes and solves {noise.rate:.0%} of the tasks on "
            f"average (rates of tasks: Beta({2 * noise.rate:g}, {2 - 2 * noise.rate:g})):",
            f"- Standard error of one evaluation: {noise.error:.1f} points. "
            f"{last.tasks} different tasks, the same each time: {noise.fixed_error:.1f}.",
            f"- The best of {n} evaluations is {noise.rise:.1f} points too high on average"
            + (f", the best of the last {late} {noise.late_rise:.1f}." if n > late else "."),
        ):
            say_wrapped(line)
    for note in (result.order, *recipe.notes):
        if note:
            say_wrapped(f"Note: {note}")


def _evaluations_table(evaluations: Sequence[EvaluationDraws]) -> Table:
    """Return a table that summarises each count over all evaluations in one row."""
    first, last = evaluations[0], evaluations[-1]
    heads = (f"at {first.iteration}", f"at {last.iteration}", "mean", "lowest", "highest")
    table = Table(
        f"{len(evaluations)} evaluations of {first.tasks}",
        *(Column(head, justify="right") for head in heads),
    )
    counts: dict[str, Callable[[EvaluationDraws], int | None]] = {
        "different tasks": lambda one: one.distinct,
        "episodes of the most frequent task": lambda one: one.most,
        "different tasks shared with the evaluation before": lambda one: one.shared,
    }
    for name, count in counts.items():
        values = [value for one in evaluations if (value := count(one)) is not None]
        if values:
            table.add_row(name, *_summarise(count(first), count(last), values))
    for name in first.trained:
        values = [one.trained[name] for one in evaluations]
        shares = [f"{value} ({value / first.tasks:.1%})" for value in (values[0], values[-1])]
        _, _, *rest = _summarise(None, None, values)
        table.add_row(f"episodes of tasks trained on: {name}", *shares, *rest)
    return table


def _summarise(first: int | None, last: int | None, values: Sequence[int]) -> list[str]:
    ends = ["–" if value is None else str(value) for value in (first, last)]
    return [*ends, f"{mean(values):.1f}", str(min(values)), str(max(values))]


def _audit_own(name: str, as_json: bool) -> None:
    from coevo_gym.view.model.run_audit import audit_run

    with show_progress(f"auditing {name}"):
        result = audit_run(name)
    if as_json:
        print_json(asdict(result))
    else:
        _print_run_audit(result)


def _print_run_audit(result: RunAudit) -> None:
    numbers = (
        *("tasks trained on", "evaluations", "episodes", "different tasks", "in every evaluation"),
        *("same task", "same scenario"),
    )
    table = Table("policy", "evaluated on", *(Column(head, justify="right") for head in numbers))
    for row in result.rows:
        cells: tuple[Any, ...] = (
            *(row.trained, row.evaluations, row.episodes, row.distinct, row.shared),
            *(row.same_task, row.same_scenario),
        )
        table.add_row(escape(row.policy), escape(row.tasks), *(f"{cell:,}" for cell in cells))
    print_table(table)
    if result.warmup_tasks:
        say(f"Tasks trained on include the {result.warmup_tasks:,} tasks of the warm-up.")
    same = sum(row.same_task for row in result.rows)
    seen = sum(row.seen for row in result.rows)
    near = sum(row.same_scenario for row in result.rows) - seen
    end = f", apart from the {seen:,} that do by the benchmark's own rule." if seen else "."
    if not result.rows:
        say("The run has not evaluated any policy yet.")
    elif not same + near:
        say(
            "No evaluated task was trained on, and none shares a scenario with a training task"
            + end
        )
    else:
        say(f"Over all rows, {same:,} tasks were trained on, {near:,} more share a scenario" + end)
