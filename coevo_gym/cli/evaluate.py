"""``coevo eval``: evaluate a policy on held-out tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    FAILED,
    MAX_TYPES,
    AsJson,
    ask_to_accept_cost,
    ask_to_permit,
    errors,
    print_json,
    print_table,
    print_table_unwrapped,
    say,
    say_to_stderr,
)
from coevo_gym.cli.settings import Sets, Tools, Verify, Yes, print_plan
from coevo_gym.cli.sources import benchmark_names, make_completer, run_names
from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError
from coevo_gym.core.task import Split
from coevo_gym.envs.tags import kind_of_tag
from coevo_gym.runs.display import RunProgress, send_logs_to
from coevo_gym.runs.table import NO_SCORES, FinalScores, TableRow, result_cells
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import replace_non_finite

if TYPE_CHECKING:
    from coevo_gym.core.stats import Rate
    from coevo_gym.episodes.evaluation import Evaluation
    from coevo_gym.runs.evals.job import EvalJob
    from coevo_gym.runs.evals.tables.definition import EvalTableDefinition
    from coevo_gym.runs.evals.tables.running import PlannedCell
    from coevo_gym.runs.evals.trials import TrialFolder


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Name of a benchmark or a run; a .toml file that evaluates several models; or, "
            "with --verify, a JSONL file of rows.",
            autocompletion=make_completer(benchmark_names, run_names),
        ),
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="For a benchmark: openai:MODEL (an endpoint), transformers:MODEL, vllm:MODEL or "
            "vllm_server:MODEL, 'random', or 'scripted' (plays the reference solutions). For a "
            "run: an arm (default: the last), 'warm-up', 'random' or 'scripted'."
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            help="Split to evaluate on; held_out is only available for runs with "
            "benchmark.hold_out > 0.",
            show_default="val",
        ),
    ] = None,
    panel: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Play all tasks of a panel, in its order, instead of tasks of a split; `coevo "
            "panel list` lists the panels.",
        ),
    ] = None,
    n_tasks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--n-tasks",
            min=1,
            metavar="N",
            help="Number of tasks, as with --set evaluation.n_tasks=N; also works with a run.",
            show_default="from the settings",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            show_default="1",
            help="Episodes per task. If K > 1 and evaluation.temperature is 0 (greedy), the "
            "episodes are sampled at the policy's training temperature instead.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Retry failed tasks, up to N trials each, adding reflections on earlier failures "
            "to the prompt (Reflexion). Trials are stored but cannot be compared with evaluations.",
            show_default="no retries",
        ),
    ] = None,
    cut: Annotated[
        bool,
        typer.Option(
            "--cut/--no-cut",
            help="With --trials: end an episode when an action repeats the previous action.",
        ),
    ] = True,
    on: Annotated[
        str | None,
        typer.Option(metavar="BENCHMARK", help="Evaluate a run on a benchmark other than its own."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the evaluation's folder in evals/.", show_default="generated"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete any existing evaluation with this name.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="For a .toml file: print what each evaluation would play and cost, then exit.",
        ),
    ] = False,
    yes: Yes = False,
    sets: Sets = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Env argument; may be repeated."),
    ] = None,
    verify: Verify = "",
    tools: Tools = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TAG",
            help="Also break down success rates by this kind of tag (for example, 'goal'). "
            "Use 'all' for every kind. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a language model, a run's policy or a baseline on held-out tasks.

    Name a benchmark and a model, or a run that you have trained. To evaluate several models on
    several benchmarks, write a .toml file (docs/howto/evaluate.md). Only the options --set, -n,
    --name, --overwrite, --dry-run, --yes and --json work with a file, which sets everything else.

    Everything is saved in evals/NAME: the settings, a line and a trajectory for each finished
    episode, and a summary. Run the same command again to resume an interrupted evaluation and to
    retry episodes that were lost to an infrastructure fault.

    On a CPU, even a small language model takes seconds per step, so start with a few tasks (-n 3).
    The remaining time is printed after the first answers. If the endpoint is public or you have
    set its prices, the command prints an estimate of the cost and asks you to accept it.

    A panel is a fixed list of tasks with hashes of their content, so two results on a panel are
    always results on the same tasks. Each result ends with a line to cite, which `coevo panel
    verify --cite` explains.

    For example:

      coevo eval webshop --policy openai:my-llm -n 20

      coevo eval webshop --policy transformers:smollm2 -n 3

      coevo eval alfworld --policy vllm:./model --panel alfworld-valid-unseen-134

      coevo eval bfcl --policy scripted --split test --env scheme=all200

      coevo eval webshop --policy transformers:smollm2 -n 3 --trials 3

      coevo eval rows.jsonl --verify mine.py:check --policy openai:my-llm

      coevo eval quickstart --split test

      coevo eval quickstart --policy static --samples 8 --name static-at-8

      coevo eval quickstart --on alfworld

      coevo eval models.toml --dry-run
    """
    if source.endswith(".toml"):
        _refuse_options_of_single_evaluations(
            policy=policy, split=split, panel=panel, samples=samples, trials=trials, on=on, env=env,
            verify=verify, tool=tools, by=by,
        )  # fmt: skip
        from coevo_gym.runs.evals.tables.definition import load_eval_table

        _evaluate_table(
            load_eval_table(source, name=name, sets=sets or (), n_tasks=n_tasks),
            dry_run=dry_run,
            overwrite=overwrite,
            yes=yes,
            as_json=as_json,
        )
        return
    if dry_run:
        raise ConfigError("--dry-run needs a .toml file. A single evaluation has no plan to print.")
    samples = samples or 1
    from coevo_gym.runs.evals.evaluation import (
        citation,
        default_name,
        evaluate_job,
        identity,
        to_json,
    )
    from coevo_gym.runs.evals.job import TrialRules, make_eval_job
    from coevo_gym.runs.evals.trials import TrialFolder

    if trials is not None and (samples > 1 or by):
        raise ConfigError("Omit --samples and --by, or omit --trials: they cannot be combined.")
    if trials is None and not cut:
        raise ConfigError("--no-cut needs --trials: plain evaluations never cut episodes short.")
    progress = RunProgress(errors)
    with send_logs_to(progress.say):
        job = make_eval_job(
            source,
            policy,
            None if split is None else split.value,
            progress,
            panel=panel,
            n_tasks=n_tasks,
            samples=samples,
            on=on,
            sets=sets or (),
            env=env or (),
            verify=verify,
            tools=tools or (),
        )
        if trials is not None:
            job = replace(job, trials=TrialRules(trials, cut=cut))
        _check_tag_kinds(by or (), job)
        folder_name = default_name(job, identity(job)) if name is None else name
        agreed = yes or ask_to_accept_cost(job.estimate_costs())
        if trials is not None:
            _run_and_print_trials(
                TrialFolder.by_name(folder_name), job, progress, overwrite, agreed, as_json=as_json
            )
            return
        folder = EvalFolder.by_name(folder_name)
        with _progress_with_resume_hint(folder, progress), job.stop_request() as stop:
            evaluation = evaluate_job(
                job,
                progress,
                folder=folder,
                overwrite=overwrite,
                agreed=agreed,
                begun=_say_already_done,
                stop=stop,
            )
    if as_json:
        print_json({**replace_non_finite(to_json(job, evaluation)), "folder": str(folder.path)})
        return
    for table, left_out in type_tables(evaluation.rates_by_type, by or ()):
        if table.row_count:
            print_table(table)
        if left_out:
            say(left_out)
    for line in remarks(job, evaluation, folder, by or ()):
        say(line)
    steps = sum(line.steps for line in evaluation.lines)
    row = replace(job.row(evaluation), env_steps=steps)
    print_table_unwrapped(result_table([row], job.split, samples=samples))
    say(f"Look inside: coevo view {folder.path}")
    say("To cite this result:")
    say(str(citation(job, evaluation)))


def _refuse_options_of_single_evaluations(**options: object) -> None:
    """Refuse options that a file of several evaluations sets instead.

    Raises:
        ConfigError: if one of the options was given.
    """
    for name, value in options.items():
        if value:
            raise ConfigError(
                f"--{name} is for a single evaluation. With a .toml file, set it in the file "
                "(docs/howto/evaluate.md), or omit it."
            )


def _evaluate_table(
    table: EvalTableDefinition, *, dry_run: bool, overwrite: bool, yes: bool, as_json: bool
) -> None:
    """Run a table of evaluations and print it, or print what it would run.

    Raises:
        ConfigError: if some models cannot be played.
        typer.Exit: with code 1, if a cell failed.
    """
    from coevo_gym.runs.config import approve_settings
    from coevo_gym.runs.evals.tables.definition import refuse_mistaken_models
    from coevo_gym.runs.evals.tables.running import (
        merge_costs,
        plan_eval_table,
        run_eval_table,
    )
    from coevo_gym.runs.evals.tables.table import explanations, main_grid, to_json

    if dry_run:
        with send_logs_to(cache(say_to_stderr)):  # each cell may give the same warning
            plans = plan_eval_table(table, fresh=overwrite)
        _print_table_plan(table, plans, as_json=as_json)
    refuse_mistaken_models(table)
    if dry_run:
        return
    progress = RunProgress(errors, one_line=True)
    with send_logs_to(progress.say):
        for cell in table.cells:
            approve_settings(cell.config, None if yes else ask_to_permit)
        plans = plan_eval_table(table, fresh=overwrite, only_begun=True)
        agreed = yes or ask_to_accept_cost(merge_costs(plans))
        try:
            with progress:
                result = run_eval_table(table, plans, progress, overwrite=overwrite, agreed=agreed)
        except KeyboardInterrupt:
            progress.say(
                f"Stopped. Finished episodes are in {table.folder}; run the same command to "
                "continue."
            )
            raise
    if as_json:
        print_json({**to_json(result), "folder": str(table.folder)})
    else:
        say(result.title)
        heads, rows = main_grid(result.results)
        grid = Table(*(Column(head, overflow="fold") for head in heads))
        for row in rows:
            grid.add_row(*map(escape, row))
        print_table_unwrapped(grid)
        for line in (*explanations(result.results), *result.problems, *result.notes):
            say(line)
        say(f"Table: {table.folder / 'table.md'}. Look inside: coevo view {table.folder}")
    failed = sum(cell.state == "failed" for cell in result.cells)
    if failed:
        say_to_stderr(
            f"{failed} of {len(result.cells)} cells failed for the reasons above. Solve these "
            "problems, then run the same command to continue."
        )
        raise typer.Exit(FAILED)


def _print_table_plan(
    table: EvalTableDefinition, plans: Sequence[PlannedCell], *, as_json: bool
) -> None:
    """Print what each cell of a table would play, and what the endpoints may cost."""
    from coevo_gym.runs.evals.tables.running import group_warnings, merge_costs
    from coevo_gym.runs.evals.tables.table import group_problems

    costs = merge_costs(plans)
    if as_json:
        print_json(
            {
                "folder": str(table.folder),
                "cells": [
                    {
                        "row": plan.cell.row,
                        "column": plan.cell.column,
                        "seed": plan.cell.seed,
                        "folder": str(plan.cell.folder.path),
                        **{key: value for key, value in plan._asdict().items() if key in _PLANNED},
                    }
                    for plan in plans
                ],
                "asked": [
                    {**one.model_dump(mode="json"), "usd": one.cost.usd or None} for one in costs
                ],
            }
        )
        return
    grid = Table("model", "benchmark", "seed", "done", "episodes", "env steps at most")
    for plan in plans:
        left = 0 if plan.used_from else (plan.total or 0) - plan.done
        grid.add_row(
            escape(plan.cell.row),
            escape(plan.cell.column),
            str(plan.cell.seed),
            f"{plan.done:,}",
            "unknown" if plan.total is None else f"{plan.total:,}",
            "unknown" if plan.total is None else f"{left * plan.max_steps:,}",
        )
    say(f"{table.title}: {len(plans)} evaluations in {table.folder}")
    print_table(grid)
    for plan in plans:
        if plan.used_from:
            say(f"{plan.cell.place}: the identical evaluation {plan.used_from} will be used.")
    for places, warning in group_warnings(plans):
        say(f"{places}: {warning}")
    stopped = [plan for plan in plans if plan.problem and not plan.cell.mistake]
    for places, problem in group_problems((plan.cell, plan.problem) for plan in stopped):
        say(f"{places}: {problem}")
    for estimate in costs:
        print_plan(list(estimate.to_rows()), "\nrequests to an endpoint")


_PLANNED = ("done", "total", "max_steps", "used_from", "problem")
"""Values of a planned cell that are printed as JSON."""


def _run_and_print_trials(
    folder: TrialFolder,
    job: EvalJob,
    progress: RunProgress,
    overwrite: bool,
    agreed: bool,
    *,
    as_json: bool,
) -> None:
    """Run trials and print their results."""
    from coevo_gym.runs.evals.trials import run_trials_in, to_json

    with _progress_with_resume_hint(folder, progress), job.stop_request() as stop:
        trials = run_trials_in(folder, job, progress, overwrite=overwrite, agreed=agreed, stop=stop)
    if as_json:
        print_json({**replace_non_finite(to_json(job, trials)), "folder": str(folder.path)})
        return
    later = (f"after trial {n} (uses {job.split} outcomes)" for n in range(2, trials.n + 1))
    table = Table("policy", f"success on {job.split}, trial 1", *later, "tasks", "env steps")
    rates = (f"{rate:.1%}" for rate in trials.rates_by_trial)
    table.add_row(escape(job.policy), *rates, str(len(trials.tasks)), f"{trials.env_steps:,}")
    if not_told := trials.n_to_reflect_on - len(trials.reflections):
        say(f"{not_told} of {trials.n_to_reflect_on} reflections were unusable.")
    if trials.n_lost:
        say(
            f"{trials.n_lost} of {len(trials.tasks)} tasks lost an episode to a fault and are "
            f"excluded from that trial onwards ({folder.lost}). Run the same command to retry them."
        )
    say(f"Trials: {folder.path}")
    print_table_unwrapped(table)


ALL = "all"
"""The value of ``--by`` that selects every kind of tag."""
MIN_TASKS = 5
"""Minimum number of tasks for a type to be shown; with fewer, the interval is too wide."""


@contextmanager
def _progress_with_resume_hint(folder: EvalFolder, progress: RunProgress) -> Iterator[None]:
    """Show progress during a ``with`` block and, if interrupted, print how to resume."""
    try:
        with progress:
            yield
    except KeyboardInterrupt:
        progress.say(f"Stopped. {_resume_hint(folder)}")
        raise
    except (ModelError, EnvBackendError) as error:
        if folder.results.is_file():
            error.add_note(_resume_hint(folder))
        raise


def _resume_hint(folder: EvalFolder) -> str:
    again = "run the same command to continue."
    if folder.read_results():
        return f"Finished episodes are in {folder.path}; {again}"
    return f"No episode has finished; {again}"


def _say_already_done(done: int, total: int) -> None:
    if done == total:
        say_to_stderr(f"All {total} episodes are already done. Use --overwrite to run them again.")
    elif done:
        say_to_stderr(f"{done} of {total} episodes are already done.")


def _check_tag_kinds(by: Sequence[str], job: EvalJob) -> None:
    """Check, before the evaluation starts, that each requested kind of tag exists."""
    from coevo_gym.episodes.evaluation import types_of

    known = sorted({kind_of_tag(tag) for task in job.tasks for tag in types_of(task)})
    for kind in by:
        if kind not in (*known, ALL):
            raise ConfigError(
                f"No {job.split} task has a tag of kind {kind!r}. Set --by to one of: "
                f"{', '.join((*known, ALL))}."
            )


def type_tables(
    types: Mapping[str, Mapping[str, Rate]], by: Sequence[str]
) -> Iterator[tuple[Table, str]]:
    """Yield (table of success rates, note on omitted rows) pairs, one per requested kind of tag.

    The kind ``all`` selects every kind that has several values, but few enough to read.
    """
    for kind, rates in types.items():
        if kind not in by and not (ALL in by and 1 < len(rates) <= MAX_TYPES):
            continue
        large = {value: rate for value, rate in rates.items() if rate.tasks >= MIN_TASKS}
        table = Table(Column(kind, overflow="fold"), "success", "95 % interval", "tasks")
        for value, rate in large.items():
            cells = (f"{rate.success:.1%}", f"{rate.low:.1%} – {rate.high:.1%}", str(rate.tasks))
            table.add_row(escape(value), *cells)
        few = len(rates) - len(large)
        left_out = f"{few} of {len(rates)} values of {kind} have fewer than {MIN_TASKS} tasks and"
        yield table, f"{left_out} are not shown." if few else ""


def remarks(
    job: EvalJob, evaluation: Evaluation, folder: EvalFolder, by: Sequence[str]
) -> Iterator[str]:
    """Yield additional notes on an evaluation, one line each."""
    types = evaluation.rates_by_type
    if evaluation.pass_at:
        passed = (f"pass@{k} {share:.1%}" for k, share in evaluation.pass_at.items())
        yield f"With {evaluation.samples} samples per task: {', '.join(passed)}."
    fine = [kind for kind, rates in types.items() if len(rates) > MAX_TYPES]
    if ALL in by and (fine := [kind for kind in fine if kind not in by]):
        yield f"Success by {', '.join(fine)} is in {folder.summary}."
    if types and not by:
        yield f"For success by task type, pass --by {', --by '.join(types)}, or --by {ALL}."
    if job.env_steps:
        yield f"{job.policy} was trained for {job.env_steps:,} env steps."
    if evaluation.answer_counts.total and job.model:
        shares = evaluation.answer_counts.shares
        yield (
            f"Answers: {shares['empty']:.1%} empty, {shares['cut']:.1%} cut at the token limit, "
            f"{shares['invalid']:.1%} without effect."
        )
    if evaluation.n_lost:
        yield (
            f"{evaluation.n_lost} of {len(evaluation.tasks) * evaluation.samples} episodes were "
            "lost to a fault "
            f"and are excluded from all results ({folder.lost}). Run the same command to retry."
        )
    yield f"Evaluation: {folder.path}"


def result_table(
    rows: Sequence[TableRow],
    split: str,
    *,
    samples: int = 1,
    final: FinalScores = NO_SCORES,
) -> Table:
    """Return a table of the policies' results on held-out tasks.

    Args:
        rows: one row per policy.
        split: the split that the tasks belong to.
        samples: episodes per task; success is their mean.
        final: scores on final tasks; see :func:`~coevo_gym.runs.table.final_columns`.
    """
    heads, cells = result_cells(rows, split, samples=samples, final=final)
    table = Table(Column(heads[0], overflow="fold"), *heads[1:])
    for row in cells:
        table.add_row(*row)
    return table
