"""Commands that start, resume and report on training runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coevo_gym.cli.evaluate import result_table
from coevo_gym.cli.output import (
    INTERRUPTED,
    AsJson,
    ask_to_accept_cost,
    console,
    print_json,
    print_table_unwrapped,
    require_writable,
    say,
    say_block,
    say_to_stderr,
    say_wrapped,
)
from coevo_gym.cli.settings import (
    Card,
    IgnoreMemory,
    Sets,
    Tools,
    Verify,
    Yes,
    describe_run_plan,
    prepare_run,
    print_plan,
)
from coevo_gym.cli.sources import RunName, make_completer, preset_names
from coevo_gym.core.errors import CoevoError, ConfigError, StoreError, TaskError, TrainingDiverged
from coevo_gym.runs.display import RunProgress, send_logs_to
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.store.folder import RUNS, RunFolder

if TYPE_CHECKING:
    from coevo_gym.runs.config import Resolved, RunConfig
    from coevo_gym.runs.train import RunSummary


Processes = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Processes that share each update of a language model, one per GPU.",
    ),
]


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET_OR_FILE]",
            help="Name of a preset (see --list), a .toml file, or a .jsonl file of rows.",
            autocompletion=make_completer(preset_names),
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run's folder in runs/.")] = None,
    sets: Sets = None,
    verify: Verify = "",
    tools: Tools = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete any existing run with this name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run would do and require, then exit.")
    ] = False,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Only list the presets and the cost of each, and your own "
            "methods and learners in this folder.",
        ),
    ] = False,
    card: Card = None,
    processes: Processes = 1,
    yes: Yes = False,
    ignore_memory: IgnoreMemory = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy with each arm of a preset, and compare the arms on held-out tasks.

    Everything is saved in runs/NAME. Ctrl-C stops after the current step; `coevo resume` continues.
    If the run uses a model that may cost money, the command prints an estimate and asks you first.

    For example:

      coevo train --list

      coevo train quickstart

      coevo train quickstart --name longer --set loop.max_env_steps=80000 --set seed=1

      coevo train coevolve_bfcl_qwen3_4b --dry-run --card h100

      coevo train webshop_llm --set explorer.model.endpoint.model=gpt-4.1-mini

      coevo train rows.jsonl --verify mine.py:check --set loop.max_steps=20
    """
    from coevo_gym.runs.config import approve_settings, load_config

    if listing:
        _print_presets(as_json)
        return
    if source is None:
        raise ConfigError(
            "No preset given. `coevo train --list` lists the presets. For your own settings, pass "
            "a path that ends in .toml."
        )
    if verify or tools or source.endswith(".jsonl"):
        settings: str | dict[str, object] = _settings_for_rows(source, verify, tools or ())
    else:
        settings = source
    resolved = load_config(
        settings, sets=[*(sets or ()), *([f"name={name}"] if name is not None else ())]
    )
    if dry_run:
        if yes:  # a plan for rows runs the file with their functions
            approve_settings(resolved.config)
        if processes > 1:
            from coevo_gym.runs.planning.processes import check_policy_kind

            check_policy_kind(resolved.config, processes)
        planned = describe_run_plan(resolved.config, card, processes)
        if as_json:
            print_json(planned.numbers)
        else:
            print_plan(planned.rows)
        return
    if card is not None:
        raise ConfigError("--card selects the GPU to plan for, so it needs --dry-run.")
    if as_json:
        raise ConfigError("--json prints a plan or a list, so it needs --dry-run or --list.")
    folder = RunFolder(RUNS / resolved.config.name)
    start_run(
        folder,
        resolved,
        yes=yes,
        ignore_memory=ignore_memory,
        overwrite=overwrite,
        processes=processes,
    )


def start_run(
    folder: RunFolder,
    resolved: Resolved,
    *,
    yes: bool,
    ignore_memory: bool,
    overwrite: bool = False,
    prepare: Callable[[RunFolder], object] | None = None,
    processes: int = 1,
) -> None:
    """Start a run after asking for what it needs, and print its results.

    Args:
        folder: folder of the run.
        resolved: settings of the run.
        yes: permit and accept everything without asking.
        ignore_memory: start even if the model does not fit in memory.
        overwrite: delete any existing run in the folder.
        prepare: called with the new folder before the run begins.
        processes: number of processes that share each update.
    """
    prepare_run(resolved.config, yes=yes, ignore_memory=ignore_memory, processes=processes)
    from coevo_gym.runs.planning.cost import estimate_costs, refuse_if_paid
    from coevo_gym.runs.train import train as train_run

    costs = estimate_costs(resolved.config)
    agreed = yes or ask_to_accept_cost(costs)
    if processes > 1 and not agreed:  # the processes that are started take the answer for granted
        refuse_if_paid(costs)
    _execute_run(
        folder,
        resolved.config,
        lambda progress, stop: train_run(
            folder, resolved, progress, stop, overwrite=overwrite, agreed=agreed, prepare=prepare
        ),
        processes,
    )


def resume(
    run: RunName,
    processes: Processes = 1,
    ignore_memory: IgnoreMemory = False,
    ignore_arithmetic: Annotated[
        bool,
        typer.Option(
            "--ignore-arithmetic",
            help="Continue even if this machine's processor rounds differently from the one on "
            "which the run was started.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Continue a stopped run from its last checkpoint.

    A run with portable arithmetic continues with the same results on any x86-64 processor. With
    native arithmetic, results depend on the processor.

    For example: coevo resume quickstart
    """
    from coevo_gym.runs.manifest import read_manifest

    folder = RunFolder.of(run)
    if folder.summary.is_file():
        from coevo_gym.runs.train import RunSummary

        say(f"{folder.path.name} is finished. `coevo train … --name NAME` starts another run.")
        _print_results(RunSummary.read(folder))
        _write_and_announce_report(folder)
        return
    config = read_manifest(folder)[1]
    prepare_run(config, yes=yes, ignore_memory=ignore_memory, processes=processes)
    from coevo_gym.runs.train import resume as resume_run

    _execute_run(
        folder,
        config,
        lambda progress, stop: resume_run(
            folder, progress, stop, ignore_arithmetic=ignore_arithmetic
        ),
        processes,
    )


def report(
    run: RunName,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report to this file instead of the run's folder."
        ),
    ] = None,
) -> None:
    """Rewrite a run's report.html, even while the run is training.

    The command does not change anything else in the run.

    For example:

      coevo report quickstart

      coevo report /shared/runs/quickstart --output report.html
    """
    folder = RunFolder.of(run)
    from coevo_gym.view.export.write import write_report

    require_writable(output)
    try:
        say(f"Report: {write_report(folder, output)}")
    except StoreError as error:
        if output is None:
            error.add_note("Pass --output FILE to write the report somewhere else.")
        raise


def _settings_for_rows(file: str, verify: str, tools: Sequence[str]) -> dict[str, object]:
    """Return the settings for a run whose tasks are the rows in a file."""
    rows = {"file": file, "verify": verify, "tools": list(tools)}
    return {"name": Path(file).stem, "benchmark": {"rows": rows}}


def _execute_run(
    folder: RunFolder,
    config: RunConfig,
    work: Callable[[RunProgress, StopRequest], RunSummary],
    processes: int,
) -> None:
    """Execute a run, and print its results or the command that resumes it."""
    hint = f"coevo resume {folder.path.name}"
    together: AbstractContextManager[None] = nullcontext()
    if processes > 1:
        from coevo_gym.runs.planning.device import rank_of_process
        from coevo_gym.runs.planning.processes import check_processes
        from coevo_gym.runs.train import follow
        from coevo_gym.trainers.launcher import follow_ranks, lead_ranks, run_ranks

        hint += f" --processes {processes}"
        check_processes(config, processes)
        rank, device = rank_of_process(), config.policy.model.device
        if rank is None:
            with _resume_hint(folder, hint):
                raise typer.Exit(run_ranks(processes))
        if rank:
            with send_logs_to(lambda text: None), follow_ranks(device):  # rank 0 logs the same
                follow(config)
            return
        together = lead_ranks(device)
    with (
        RunProgress(console) as progress,
        send_logs_to(progress.say),
        StopRequest() as stop,
        _resume_hint(folder, hint),
    ):
        try:
            with together:
                summary = work(progress, stop)
        except Stopped:
            progress.say(f"Stopped and saved. Continue with: {hint}")
            raise typer.Exit(INTERRUPTED) from None
    _print_results(summary)
    _write_and_announce_report(folder)


@contextmanager
def _resume_hint(folder: RunFolder, hint: str) -> Iterator[None]:
    """Add the command that resumes a run to errors of a ``with`` block that are not the user's."""
    try:
        yield
    except (ConfigError, TaskError, TrainingDiverged):
        raise
    except CoevoError as error:
        if folder.manifest.is_file():
            error.add_note(f"Continue with: {hint}")
        raise


def _print_results(summary: RunSummary) -> None:
    """Print the results of a finished run."""
    from coevo_gym.runs.evolving.answers import describe_answers, unusable_answer_warnings

    rows, split = summary.table, summary.split
    print_table_unwrapped(result_table(rows, split, samples=summary.samples, final=summary.final))
    say("This is one seed: repeats can differ by more than these intervals.")
    answers = {arm: asked for arm, facts in summary.arms.items() if (asked := facts["answers"])}
    for arm, asked in answers.items():
        say(f"Model answers in {arm}: {describe_answers(asked)}")
    for warning in unusable_answer_warnings(answers):
        say_to_stderr(f"warning: {warning}")


def _write_and_announce_report(folder: RunFolder) -> None:
    """Write a finished run's reports, and print their paths and the command that shows the run."""
    from coevo_gym.view.export.write import write_report

    if folder.reproduction.is_file():
        from coevo_gym.view.export.reproduction import write_reproduction

        for line in write_reproduction(folder).verdicts:
            say_wrapped(line)
        say(f"Reproduction: {folder.reproduction_report}")
    say(f"Report: {write_report(folder)}")
    say(f"Look inside: coevo view {folder.path.name}")


def _print_presets(as_json: bool) -> None:
    """Print the presets, and the methods and learners in the current folder."""
    from coevo_gym.methods.plugins import own_components
    from coevo_gym.runs.planning.preset_costs import preset_costs

    costs, own = preset_costs(), list(own_components(Path.cwd()))
    if as_json:
        presets = [{"kind": "preset", **asdict(cost), "cost": cost.describe()} for cost in costs]
        print_json([*presets, *(one._asdict() for one in own)])
        return
    for cost in costs:
        facts = [("", cost.about), ("arms", ", ".join(cost.arms)), ("cost", cost.describe())]
        say_block(cost.name, facts)
    for kind, name, about, sets in own:
        use = " ".join(["coevo train quickstart", *(f"--set {one}" for one in sets)])
        say_block(f"your {kind} {name}", [("", about), ("use", use)])
    say_to_stderr(
        "Costs are upper bounds: they assume that every answer has its maximum length. "
        "`coevo train NAME --dry-run` prints the whole plan; --card NAME plans for another GPU."
    )
