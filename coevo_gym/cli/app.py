"""The command: its verbs, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from gymnasium.error import Error as GymnasiumError
from typer.main import get_command

from coevo_gym import __version__
from coevo_gym.cli import (
    benchmarks,
    compare,
    evaluate,
    experiment,
    models,
    settings,
)
from coevo_gym.cli.game import verb as game
from coevo_gym.cli.help import for_help
from coevo_gym.cli.new import verbs as new
from coevo_gym.cli.output import (
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
    USAGE,
    console,
    errors,
    say_aside,
    telling,
)
from coevo_gym.cli.runs import group as runs
from coevo_gym.cli.runs import verbs
from coevo_gym.cli.serve import command as serve
from coevo_gym.cli.tasks import group as tasks
from coevo_gym.cli.web import view
from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    ConfigError,
    ModelNotFetched,
    ModelNotFound,
    TaskError,
)

app = typer.Typer(
    name="coevo",
    help="LLM-agent benchmarks as Gymnasium envs, and a curriculum that evolves with the agent.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for verb in (benchmarks.envs, benchmarks.doctor, benchmarks.install, game.play):
    app.command()(verb)
app.command()(verbs.train)
app.command()(verbs.resume)
app.command("eval")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command()(experiment.experiment)
app.command()(serve.serve)
app.add_typer(tasks.app, name="tasks")
app.command()(verbs.report)
app.add_typer(runs.app, name="runs")
app.command()(view.view)
app.add_typer(settings.app, name="config")
app.add_typer(new.app, name="new")
app.add_typer(models.app, name="model")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command and turn errors into messages and exit codes."""
    try:
        with telling(say_aside):
            code = for_help(get_command(app))(prog_name="coevo", standalone_mode=False)
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
