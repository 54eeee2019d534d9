"""The ``coevo`` command, with its subcommands, error messages and exit codes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from enum import EnumType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from gymnasium.error import Error as GymnasiumError
from typer.main import get_command

from coevo_gym import __version__
from coevo_gym.cli import (
    audit,
    benchmarks,
    compare,
    evaluate,
    experiment,
    export,
    models,
    panel,
    play,
    plot,
    reproduce,
    runs,
    serve,
    settings,
    show,
    train,
    view,
)
from coevo_gym.cli.new import verbs as new
from coevo_gym.cli.output import (
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
    USAGE,
    console,
    errors,
    say_to_stderr,
)
from coevo_gym.cli.tasks import group as tasks
from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    ConfigError,
    ModelNotFetched,
    ModelNotFound,
    TaskError,
)
from coevo_gym.runs.display import send_logs_to


def reformat_help(command: Any) -> Any:
    """Reformat the ``--help`` output of a command and its subcommands.

    Line breaks within paragraphs are removed, so that they fit any terminal. Instead of Python
    types, the help shows each value's name or choices, and nothing for flags.
    """
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(command.help or ""))
    parameters = command.get_params
    command.get_params = lambda ctx: [_set_metavar(command, one) for one in parameters(ctx)]
    for inner in getattr(command, "commands", {}).values():
        reformat_help(inner)
    return command


def _set_metavar(command: Any, parameter: Any) -> Any:
    if isinstance(default := getattr(parameter, "show_default", None), str):
        parameter.show_default = False  # it would be shown in parentheses
        parameter.help = rf"{parameter.help} \[default: {default}]"
    if parameter.param_type_name == "argument":
        parameter.metavar = metavar_of(parameter)
        parameter.get_usage_pieces = lambda ctx: [parameter.metavar]
        parameter.display_type_rich = lambda ctx: None
    elif parameter.metavar is None:
        choices = "" if parameter.is_flag else "|".join(choices_of(command, parameter))
        parameter.metavar = "" if parameter.is_flag else choices or metavar_of(parameter)
    return parameter


def metavar_of(parameter: Any) -> str:
    """Return a parameter's metavar, in brackets if the parameter is an optional argument."""
    word = str(parameter.metavar or parameter.name.upper())
    optional = parameter.param_type_name == "argument" and not parameter.required
    return f"[{word}]" if optional and not word.startswith("[") else word


def choices_of(command: Any, parameter: Any) -> list[str]:
    """Return the allowed values of an enum parameter, or an empty list for any other type."""
    hints = get_type_hints(command.callback) if command.callback else {}
    hint = hints.get(parameter.name)
    enums: list[Any] = [part for part in (hint, *get_args(hint)) if isinstance(part, EnumType)]
    return [str(word) for enum in enums for word in enum]


app = typer.Typer(
    name="coevo",
    help="LLM-agent benchmarks as Gymnasium envs, and a curriculum that evolves with the agent.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
COMMANDS: Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]] = {
    "Set up": {
        "envs": benchmarks.envs,
        "doctor": benchmarks.doctor,
        "install": benchmarks.install,
        "model": models.app,
        "play": play.play,
    },
    "Train": {
        "train": train.train,
        "resume": train.resume,
        "experiment": experiment.experiment,
        "reproduce": reproduce.reproduce,
        "config": settings.app,
        "tasks": tasks.app,
        "serve": serve.serve,
        "new": new.app,
    },
    "Evaluate": {
        "eval": evaluate.evaluate,
        "compare": compare.compare,
        "panel": panel.app,
        "audit": audit.audit,
    },
    "Look at results": {
        "view": view.view,
        "show": show.show,
        "runs": runs.app,
        "report": train.report,
        "plot": plot.plot,
        "export": export.export,
    },
}
"""Commands and groups of commands, by heading in the help."""
for heading, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=heading)
        else:
            app.command(name, rich_help_panel=heading)(command)


@app.callback(invoke_without_command=True)
def _print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command and turn errors into messages and exit codes."""
    try:
        with send_logs_to(say_to_stderr):
            code = reformat_help(get_command(app))(prog_name="coevo", standalone_mode=False)
    except typer.Exit as exit_:
        code = exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        errors.print("interrupted", style="yellow")
        code = INTERRUPTED
    except (CoevoError, GymnasiumError, OSError, ImportError) as error:
        text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        errors.print(text, style="red", markup=False, emoji=False, soft_wrap=True)
        code = exit_code(error)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if what := error.format_message():  # a verb without its arguments has printed its help
            errors.print(
                f"{what.replace('Value error, ', '').removesuffix('.')}. Try --help.",
                style="red",
                markup=False,
                emoji=False,
                soft_wrap=True,
            )
        code = USAGE
    sys.exit(code if isinstance(code, int) else DONE)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, (BenchmarkNotInstalled, ModelNotFetched, ImportError)):
        return MISSING
    return USAGE if isinstance(error, (ConfigError, TaskError, ModelNotFound)) else FAILED
