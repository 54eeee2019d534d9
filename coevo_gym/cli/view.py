"""``coevo view``: show runs and evaluations in a browser, or export them as web pages."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coevo_gym.cli.output import REVEAL_HELP, say, say_to_stderr, show_activity
from coevo_gym.cli.sources import eval_names, make_completer, run_names
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import did_you_mean
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder

if TYPE_CHECKING:
    from coevo_gym.view.library import Library

_EXPORT = (
    "Write the pages to files that open without a server: one FILE.html, or a FOLDER for a run "
    "that is too large for one file."
)


def view(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Names or folders of runs, evaluations, or tables of either; or ATIF files of any "
            "program.",
            show_default="all in runs/ and evals/",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8770,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE_OR_FOLDER", help=_EXPORT, show_default="none")
    ] = None,
    with_episodes: Annotated[
        bool,
        typer.Option(
            "--with-episodes",
            help="With --export: include evaluation episodes. Do not train on the exported file.",
        ),
    ] = False,
    reveal: Annotated[bool, typer.Option("--reveal", help=REVEAL_HELP)] = False,
) -> None:
    """View runs and evaluations in a browser: arms, rounds, groups, tasks and trajectories.

    The pages answer questions such as why a task failed at step 3, which gate rejects most drafts,
    and how the explorer found a task. The pages are read-only, reachable from this machine only,
    and updated while a run is training. Ctrl-C stops the server. With --reveal, the pages of
    evaluation episodes contain the grader's report, with a warning.

    For example:

      coevo view

      coevo view quickstart

      coevo view baselines

      coevo view runs/first /shared/runs/second evals/gpt-on-webshop

      coevo view gpt-on-webshop --reveal

      coevo view trajectory.json

      coevo view quickstart --no-browser --port 9000

      coevo view quickstart --export quickstart.html

      coevo view quickstart --export pages/
    """
    from coevo_gym.view.library import Library

    if with_episodes and export is None:
        raise ConfigError("--with-episodes only affects exported pages, so it needs --export.")
    if reveal and export is not None:
        raise ConfigError(
            f"--reveal shows how held-out tasks are judged on this machine only, so {export} "
            "cannot contain it. Leave out --export to view the pages here, or leave out --reveal."
        )
    with tempfile.TemporaryDirectory() as temporary:
        library = Library([_open_source(name, Path(temporary)) for name in names or ()])
        if export is None:
            _serve(library, port, browser=browser, reveal=reveal)
            return
        from coevo_gym.view.export.write import export_pages

        with show_activity("exporting") as tell:
            output = export_pages(library, export, episodes=with_episodes, tell=tell)
        for line in output.left_out:
            say_to_stderr(line)
        say(f"Open {output.page} ({output.bytes / 1e6:.1f} MB).")


def _open_source(name: str, temporary: Path) -> str | EvalFolder:
    """Return the name of a run or an evaluation; or ATIF files, as an evaluation."""
    from coevo_gym.view.data.atif_files import SUFFIXES, find_atif_files, read_atif_files

    if RunFolder.find(name) or EvalFolder.find(name) or not (files := find_atif_files(name)):
        if Path(name).is_file():
            raise ConfigError(
                f"{name} is not a file of ATIF trajectories, which end in .json or .jsonl. Give "
                "such a file, or the name of a run or an evaluation: `coevo runs list` prints them."
            )
        if Path(name).suffix in SUFFIXES and not Path(name).exists():
            there = [str(path) for path in Path(name).parent.glob("*.json*")]
            raise ConfigError(
                f"There is no file {name!r}. {did_you_mean(name, there)}Give an ATIF file, or the "
                "name of a run or an evaluation: `coevo runs list` prints them."
            )
        return name
    folder, ungraded = read_atif_files(name, files, temporary)
    if ungraded:
        say_to_stderr(
            f"{ungraded} trajectories of {name} do not state whether they succeeded, so they are "
            "shown as unsolved."
        )
    return folder


def _serve(library: Library, port: int, *, browser: bool, reveal: bool) -> None:
    from coevo_gym.view.shell import require_server_packages, serve

    require_server_packages("coevo view")
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.server import make_app

    count = len(library.runs()) + len(library.evals())
    if not count:
        say_to_stderr("runs/ and evals/ are empty; new runs appear on the page as they start.")
    stopping = threading.Event()

    def ready(url: str) -> None:
        say(f"viewing at {url}")
        say_to_stderr("reachable from this machine only, read-only · Ctrl-C stops it")
        if reveal:
            say_to_stderr("The pages show how held-out tasks are judged. Do not train on them.")

    page = f"#/{library.home}" if library.home else ""
    serve(
        make_app(RunCollection(library, "page" if reveal else ""), stopping),
        port,
        stopping,
        ready,
        page=page,
        browser=browser,
    )
