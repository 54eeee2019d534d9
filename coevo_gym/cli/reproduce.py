"""``coevo reproduce``: train a published recipe again, and report on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    AsJson,
    console,
    errors,
    print_json,
    print_table,
    say,
    say_block,
    say_to_stderr,
    say_wrapped,
)
from coevo_gym.cli.settings import Card, IgnoreMemory, Sets, Yes, describe_run_plan, print_plan
from coevo_gym.cli.sources import make_completer
from coevo_gym.cli.train import resume, start_run
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.runs.reproductions import (
    TINY_TASKS,
    Recipe,
    Scale,
    find_recipe,
    recipe_names,
    tiny_settings,
)
from coevo_gym.store.folder import RUNS, RunFolder, check_folder_name, write_atomic
from coevo_gym.store.secrets import redact_secrets

if TYPE_CHECKING:
    from coevo_gym.runs.config import Resolved
    from coevo_gym.runs.config.run_sections import BenchmarkSettings
    from coevo_gym.runs.panels.known import KnownNumber
    from coevo_gym.runs.reproductions import ComparedSetting

PANELS = Path("panels")
"""Folder for the panels of the scale ``tiny``."""


def reproduce(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="Name of a published recipe. Without a name, the recipes are listed.",
            autocompletion=make_completer(recipe_names),
        ),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="full trains the recipe's model on this machine's GPU. tiny trains SmolLM2-135M "
            "for two steps on a CPU, to check that everything works."
        ),
    ] = Scale.FULL,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the run's folder in runs/.", show_default="the recipe's, and -tiny"
        ),
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print the comparison and what the run would require."),
    ] = False,
    card: Card = None,
    yes: Yes = False,
    ignore_memory: IgnoreMemory = False,
    as_json: AsJson = False,
) -> None:
    """Train a published recipe again, and put the result beside the published values.

    The command prints, setting by setting, what the original does, what is done here, and why they
    differ; the panels that the result is measured on, and the values that were published; and what
    the run requires. Then it asks before it starts. At the end, it writes a report with the curve,
    a line to cite for each evaluation, the best and the last evaluation, and a verdict.

    If the run was interrupted, run the same command again to continue it, or use `coevo resume`.

    For example:

      coevo reproduce

      coevo reproduce gigpo-alfworld-1.5b --dry-run --card h100

      coevo reproduce gigpo-webshop-1.5b --scale tiny --yes
    """
    if recipe is None:
        _print_recipes(as_json)
        return
    chosen = find_recipe(recipe)
    if card is not None and not dry_run:
        raise ConfigError("--card selects the GPU to plan for, so it needs --dry-run.")
    if as_json and not dry_run:
        raise ConfigError("--json prints the comparison and the plan, so it needs --dry-run.")
    if name is not None:
        check_folder_name(name)
    folder = RunFolder(RUNS / (name or f"{recipe}{'-tiny' * (scale is Scale.TINY)}"))
    if not dry_run and folder.manifest.is_file():
        _require_same_recipe(folder, chosen, scale)
        if sets:
            _require_same_settings(folder, _settings(chosen, scale, folder, sets, PANELS))
        resume(str(folder.path), ignore_memory=ignore_memory, yes=yes)
        return
    if dry_run:
        with TemporaryDirectory() as panels:
            resolved = _settings(chosen, scale, folder, sets or (), Path(panels))
            _print_comparison(chosen, scale, resolved, card, as_json=as_json)
        return
    resolved = _settings(chosen, scale, folder, sets or (), PANELS)
    _print_comparison(chosen, scale, resolved, card)
    if not yes:
        _ask_to_start(recipe)
    from coevo_gym.view.export.reproduction import begin_reproduction

    start_run(
        folder,
        resolved,
        yes=yes,
        ignore_memory=ignore_memory,
        prepare=lambda new: begin_reproduction(new, chosen, scale),
    )


def _print_recipes(as_json: bool) -> None:
    """Print the recipes, each with the published values."""
    recipes = [find_recipe(name) for name in recipe_names()]
    if as_json:
        print_json([recipe.model_dump(mode="json") for recipe in recipes])
        return
    for recipe in recipes:
        published = (
            f"{_describe_spread(recipe.numbers(panel))} on {panel}" for panel in recipe.published
        )
        facts = [
            ("", recipe.about),
            ("published", "; ".join(published)),
            ("run at full scale", recipe.ran or "not yet"),
        ]
        say_block(recipe.name, facts)
    say_to_stderr(
        f"{len(recipes)} recipes; `coevo reproduce NAME --dry-run` compares one with its original."
    )


def _describe_spread(published: Sequence[KnownNumber]) -> str:
    """Return the spread of published values as text."""
    values = [number.value for number in published]
    if not values:
        return "none"
    return f"{min(values):g}% to {max(values):g}% ({len(values)} sources)"


def _require_same_recipe(folder: RunFolder, recipe: Recipe, scale: Scale) -> None:
    """Check that an existing run reproduces the same recipe at the same scale.

    Raises:
        ConfigError: if it is another run.
    """
    from coevo_gym.view.export.reproduction import begun_reproduction

    begun = begun_reproduction(folder)
    if begun != (recipe, scale):
        what = "no recipe" if begun is None else f"{begun[0].name} at the scale {begun[1]}"
        raise ConfigError(
            f"{folder.path} already contains a run that reproduces {what}. Choose another --name."
        )


def _require_same_settings(folder: RunFolder, resolved: Resolved) -> None:
    """Check that the settings of a run that has begun are the ones that the user passes.

    Raises:
        ConfigError: if they differ; the message lists the settings.
    """
    from coevo_gym.runs.manifest import read_manifest

    begun, now = (  # the manifest has no secrets
        dict(flatten(redact_secrets(config.to_json())))
        for config in (read_manifest(folder)[1], resolved.config)
    )
    if differing := [key for key in {**begun, **now} if begun.get(key) != now.get(key)]:
        raise ConfigError(
            f"{folder.path} has begun with other values of {', '.join(differing)}. Omit --set to "
            "continue it, or choose another --name."
        )


def _settings(
    recipe: Recipe, scale: Scale, folder: RunFolder, sets: Sequence[str], panels: Path
) -> Resolved:
    """Return the settings of a reproduction.

    Args:
        recipe: the recipe.
        scale: its scale.
        folder: folder of the run.
        sets: the user's own settings.
        panels: folder for the panel of the scale ``tiny``.

    Raises:
        ConfigError: if they are invalid, or the policy is not a trained language model.
    """
    from coevo_gym.runs.config import load_config
    from coevo_gym.runs.config.derived import LANGUAGE_MODELS

    own = [f"name={folder.path.name}", *sets]
    if scale is Scale.TINY:
        tiny = [f"{key}={_to_setting(value)}" for key, value in tiny_settings().items()]
        benchmark = load_config(recipe.preset, sets=[*tiny, *own]).config.benchmark
        own = [*tiny, f"evaluation.panel={_make_tiny_panel(benchmark, panels)}", *own]
    resolved = load_config(recipe.preset, sets=own)
    if (kind := resolved.config.policy.kind) not in LANGUAGE_MODELS:
        raise ConfigError(
            f"policy.kind = {kind!r} cannot reproduce {recipe.name}, because such a policy has "
            "neither the prompt nor the reading of answers, or is not trained. Use "
            f"{' or '.join(LANGUAGE_MODELS)}."
        )
    if resolved.config.evaluation.panel is None:
        raise ConfigError(
            f"{recipe.name} is measured on a panel, but evaluation.panel is none. Omit this "
            "setting."
        )
    return resolved


def _to_setting(value: Any) -> str:
    if isinstance(value, list):
        return "[]" if not value else ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _make_tiny_panel(benchmark: BenchmarkSettings, panels: Path) -> Path:
    """Make the panel of the scale ``tiny`` in a folder, and return its file."""
    from coevo_gym.runs.panels.making import make_panel

    path = panels / f"{benchmark.name}-tiny-{TINY_TASKS}.json"
    with forbid_setup():
        panel = make_panel(
            benchmark.name,
            split="val",
            env={} if benchmark.subset is None else {"subset": benchmark.subset},
            size=TINY_TASKS,
            name=path.stem,
            about=f"{TINY_TASKS} validation tasks for reproductions at the scale tiny, which say "
            "nothing about published values.",
        )
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, panel.to_json().encode())
    return path


def _print_comparison(
    recipe: Recipe,
    scale: Scale,
    resolved: Resolved,
    card: str | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Print the settings of both sides, the panels with published values, and the plan."""
    from coevo_gym.runs.config import arm_configs
    from coevo_gym.runs.config.run_sections import task_set_name
    from coevo_gym.runs.planning.plan import settings_of

    config = resolved.config
    (arm,) = arm_configs(config).values()
    rows = tuple(recipe.compare(settings_of(config, arm), scale))
    plan = describe_run_plan(config, card)
    panels = map(task_set_name, (str(config.evaluation.panel), *config.evaluation.final))
    numbers = {name: recipe.numbers(name, scale) for name in panels}
    if as_json:
        print_json(
            {
                "recipe": recipe.name,
                "scale": scale.value,
                "settings": [row._asdict() for row in rows],
                "panels": {
                    name: [one.model_dump(mode="json") for one in known]
                    for name, known in numbers.items()
                },
                "plan": plan.numbers,
            }
        )
        return
    say(f"{recipe.about}. The original is verl-agent's {recipe.script} at its commit 796ed31.")
    print_table(_settings_table(rows))
    for name, known in numbers.items():
        say(f"Measured on {name}; published values: {_describe_spread(known)}")
    if recipe.remark:
        say_wrapped(f"Note: {recipe.remark}")
    print_plan(plan.rows)
    if scale is Scale.FULL and not recipe.ran:
        say_wrapped(
            "This recipe has not been run at full scale with this package yet, so neither its hours"
            " nor its result are known."
        )


def _settings_table(rows: Sequence[ComparedSetting]) -> Table:
    heads = ("setting", "original", "here", "why they differ")
    table = Table(*(Column(head, overflow="fold") for head in heads))
    for row in rows:
        cells = (row.name, row.theirs, row.ours if row.differs else "the same", row.why)
        table.add_row(*map(escape, cells), style="" if row.differs else "dim")
    return table


def _ask_to_start(recipe: str) -> None:
    """Ask the user to start the run.

    Raises:
        ConfigError: if there is no terminal to ask on.
    """
    if not (sys.stdin.isatty() and console.is_terminal and errors.is_terminal):
        raise ConfigError(
            f"{recipe} would start now, but there is no terminal to ask on. Pass --yes to start "
            "it, or --dry-run to see only the comparison and the plan."
        )
    typer.confirm("Start the run?", err=True, abort=True)
