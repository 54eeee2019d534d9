"""``coevo eval``: a policy on held-out tasks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from coevo_gym.cli.output import AsJson, errors, print_json, print_table, telling
from coevo_gym.cli.progress import RunProgress
from coevo_gym.cli.settings import Sets
from coevo_gym.cli.sources import BenchmarkOrRun, find_source
from coevo_gym.core.errors import ConfigError
from coevo_gym.store.folder import RunFolder

if TYPE_CHECKING:
    from coevo_gym.run.table import TableRow


def evaluate(
    source: BenchmarkOrRun,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Of a run: an arm (default: the last), warm-up, random or scripted. Of a "
            "benchmark: transformers:MODEL, vllm:MODEL, openai:MODEL, random or scripted."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    sets: Sets = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Pass the env an argument; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy of a run, a language model as it is, or a baseline, on a split.

    For example:

      coevo eval quickstart --split test

      coevo eval webshop --policy transformers:smollm2 --set evaluation.n_tasks=20

      coevo eval alfworld --policy openai:my-model --set policy.endpoint.base_url=http://localhost/v1

      coevo eval bfcl --policy scripted --split test --env scheme=all200
    """
    from coevo_gym.run.evaluation import evaluate_model, evaluate_policy

    found = find_source(source)
    if isinstance(found, RunFolder) and (sets or env):
        raise ConfigError(
            "--set and --env are for a benchmark; a run is evaluated with its own settings."
        )
    with RunProgress(errors) as progress, telling(progress.say):
        if isinstance(found, RunFolder):
            row = evaluate_policy(found, policy, split, progress)
        else:
            given = {"sets": sets or (), "env": env or ()}
            row = evaluate_model(found.name, policy, split, progress, **given)
    if as_json:
        print_json({**asdict(row), "split": split})
    else:
        print_table(result_table([row], split))


def result_table(rows: Any, split: str) -> Table:
    """Success of policies on held-out tasks."""
    policy = Column("policy", overflow="fold")
    table = Table(
        policy, f"success on {split}", "95 % interval", "mean score", "tasks", "env steps"
    )
    asked = any(row.tokens for row in rows)
    for column in ("tokens of models", "USD") if asked else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*_cells(row), *((f"{row.tokens:,}", f"{row.usd:.2f}") if asked else ()))
    return table


def _cells(row: TableRow) -> tuple[str, ...]:
    return (
        f"{row.name} ({row.mark})" if row.mark else row.name,
        f"{row.success:.1%}",
        f"{row.low:.1%} – {row.high:.1%}",
        f"{row.score:.3f}",
        str(row.n_tasks),
        f"{row.env_steps:,}",
    )
