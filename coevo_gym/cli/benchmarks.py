"""Commands that list, inspect and install benchmarks and trainers."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym import __version__
from coevo_gym.cli.output import (
    FAILED,
    MISSING,
    AsJson,
    console,
    errors,
    print_json,
    print_table,
    say,
    show_installation,
)
from coevo_gym.cli.sources import find_installable, setup_module_of
from coevo_gym.core.arithmetic import processor_name, supports_portable_arithmetic
from coevo_gym.core.benchmark import BenchmarkSpec, benchmark_specs, broken_benchmarks
from coevo_gym.core.errors import CoevoError, ConfigError
from coevo_gym.core.registry import BrokenPlugin
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.provision import Installation, benchmark_home
from coevo_gym.sandbox import Level
from coevo_gym.trainers.adapters.trainer import (
    Trainer,
    find_all_trainers,
    install_trainer,
    python_of,
)


def run_attacks(as_json: bool, level: Level | None = None) -> None:
    """Run all attacks on the sandbox, and fail if any attack succeeds.

    Without a level, the strongest level available here is tested.

    Raises:
        ConfigError: if the given level is not available here, or no level is.
    """
    from coevo_gym.sandbox import probe, strongest_level
    from coevo_gym.sandbox.attacks import AttackVerdict, generic_suite, run_payloads
    from coevo_gym.sandbox.attacks import suite as attacks

    if level is None:
        isolation = strongest_level()
    else:
        (isolation,) = (finding for finding in probe() if finding.level is level)
        if not isolation.holds:
            raise ConfigError(f"Isolation level {level.value!r} is unavailable: {isolation.detail}")
    suite, rows = generic_suite(), []
    with suite.setup(isolation.level) as setup, errors.status("attacks ...") as status:
        for row in run_payloads(suite.payloads, setup, isolation.level):
            rows.append(row)
            status.update(f"{len(rows)} of {len(suite.payloads)} attacks")
    if as_json:
        print_json(attacks.attacks_to_json(isolation, {suite.name: rows}))
    else:
        console.print(attacks.attack_table(suite.name, rows))
        console.print(attacks.summarise_attacks(isolation, rows), markup=False, soft_wrap=True)
    if any(row.verdict is AttackVerdict.GOT_THROUGH for row in rows):
        raise typer.Exit(FAILED)


_SPLITS = ("train", "val", "test")


def envs(as_json: AsJson = False) -> None:
    """List the environments with the number of native tasks in each split.

    The command does not install anything. If a benchmark's tasks are missing, the output contains
    the command that installs them; in JSON, their counts are -1.

    For example: coevo envs --json
    """
    with forbid_setup():
        rows = [_env_row(spec) for spec in benchmark_specs()]
        rows += [_broken_row(plugin) for plugin in broken_benchmarks()]
    if as_json:
        print_json(rows)
        return
    table = Table(Column("id", no_wrap=True), Column("benchmark", no_wrap=True), *_SPLITS, "what")
    for row in rows:
        counts = ("–" if row[split] < 0 else str(row[split]) for split in _SPLITS)
        table.add_row(row["id"], row["benchmark"], *counts, escape(row["what"]))
    print_table(table)
    say(f'To create an env: {_creation_code("ID")}, or gym.make("ID") after import coevo_gym.')
    for row in rows:
        if row["missing"] and row["id"]:  # a warning has reported broken plug-ins already
            say(f"{row['benchmark']}: {row['missing']}")


def doctor(
    as_json: AsJson = False,
    attack_suite: Annotated[
        bool,
        typer.Option("--attack-suite", help="Run only the attacks on the sandbox."),
    ] = False,
    level: Annotated[
        Level | None,
        typer.Option(help="Isolation level to test (default: the strongest available)."),
    ] = None,
) -> None:
    """Show facts about this machine, each benchmark and each trainer, and how code is isolated.

    For example: coevo doctor --attack-suite --level landlock
    """
    if level is not None and not attack_suite:
        raise ConfigError("--level sets the isolation level to test and requires --attack-suite.")
    if attack_suite:
        run_attacks(as_json, level)
        return
    specs = {spec.name: spec for spec in benchmark_specs()}
    installations = {
        name: setup_module_of(spec).installation() for name, spec in specs.items() if spec.setup
    }
    installations |= {
        plugin.name: Installation(False, str(plugin), "none", "no code is run")
        for plugin in broken_benchmarks()
    }
    trainers = find_all_trainers()
    if as_json:
        entries = {name: {"ready": row.ready, **row._asdict()} for name, row in trainers.items()}
        rows = {name: vars(row) for name, row in installations.items()}
        print_json({"machine": machine_facts(), **rows, "trainers": entries})
    else:
        console.print("[bold]this machine[/]")
        for what, value in machine_facts().items():
            say(f"  {what:<10} {value}")
        for name, row in installations.items():
            ready = "[green]ready[/]" if row.ready else "[red]not ready[/]"
            console.print(f"[bold]{escape(name)}[/]: {ready}", highlight=False)
            for what in ("engine", "data", "isolation"):
                say(f"  {what:<10} {getattr(row, what)}")
            if row.ready:
                say(f"  {'use':<10} {_creation_code(specs[name].env_id)}")
        say(_describe_isolation())
        console.print("[bold]third-party trainers[/] that can use a curriculum:")
        for name, trainer in trainers.items():
            say(f"  {name:<16} {trainer}")
    if not all(row.ready for row in installations.values()):
        raise typer.Exit(MISSING)


def machine_facts() -> dict[str, str]:
    """Return facts about this machine that results may depend on, keyed by name."""
    facts = {
        "coevo_gym": __version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "processor": processor_name(),
    }
    try:
        import torch
    except ImportError:
        return {**facts, "PyTorch": "not installed"}
    kernels = torch.backends.cpu.get_cpu_capability()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    portable = (
        "or portable" if supports_portable_arithmetic() else "(portable: needs x86-64 and MKL)"
    )
    return {
        **facts,
        "PyTorch": str(torch.__version__),
        "GPU": gpu,
        "arithmetic": f"native with {kernels} kernels, {portable}",
    }


def install(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of a benchmark or a trainer; see `coevo doctor`."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            exists=True,
            help="Folder or file that contains the official data or wheels.",
        ),
    ] = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Download the official data, if the benchmark supports it."),
    ] = False,
) -> None:
    """Install a trainer, or a benchmark's engine and data, under $COEVO_HOME.

    For example:

      coevo install bfcl

      coevo install appworld --data

      coevo install rllib
    """
    package = find_installable(name)
    if data and source is not None:
        raise ConfigError(
            "--data downloads the official data, but --from reads it from a path. Pass only one."
        )
    if isinstance(package, Trainer):
        if data:
            raise ConfigError(f"{package.title} has no data to download. Omit --data.")
        beside = benchmark_home(f"trainers/.{package.name}")
        with show_installation(f"{package.title} (about {package.size})", beside):
            folder = install_trainer(package, source)
        say(f"{package.title} is installed in {folder}: use {python_of(package)}")
        return
    setup = setup_module_of(package)
    if data and not hasattr(setup, "download"):
        raise ConfigError(f"Data for {name} cannot be downloaded. Pass the data with --from.")
    with show_installation(name, benchmark_home(package.name)):
        folder = setup.download() if data else setup.install(source)
    say(f"{name} is installed in {folder}")


def _creation_code(env_id: str) -> str:
    """Return the line of Python that creates an env."""
    return f'gym.make("coevo_gym:{env_id}")'


def _env_row(spec: BenchmarkSpec) -> dict[str, Any]:
    """Return the table row for an env. Each key has the same type in all rows."""
    from coevo_gym import tasks

    counts, missing = dict.fromkeys(_SPLITS, -1), ""
    try:
        counts = {name: len(tasks(spec.name, name)) for name in _SPLITS}
    except CoevoError as error:
        missing = str(error)
    return _make_row(spec.env_id, spec.name, spec.title, missing, counts)


def _broken_row(plugin: BrokenPlugin) -> dict[str, Any]:
    """Return the table row for a plug-in that cannot be used."""
    what = f"a plug-in from {plugin.distribution} that cannot be used"
    return _make_row("", plugin.name, what, str(plugin), dict.fromkeys(_SPLITS, -1))


def _make_row(
    id: str, benchmark: str, what: str, missing: str, counts: dict[str, int]
) -> dict[str, Any]:
    return {"id": id, "benchmark": benchmark, **counts, "what": what, "missing": missing}


def _describe_isolation() -> str:
    """Describe in one line how model-written code is isolated on this machine."""
    from coevo_gym.sandbox import probe

    for finding in probe():
        if finding.holds:
            return f"model-written code runs in: {finding.level} ({finding.detail})"
    return "model-written code is refused: no isolation is available here, see docs/sandbox.md"
