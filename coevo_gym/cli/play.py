"""``coevo play``: play a benchmark by hand, in the browser or in the terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from coevo_gym.cli.output import console, say, say_to_stderr, show_activity
from coevo_gym.cli.play_terminal import play_episode
from coevo_gym.cli.sources import NativeSplit, benchmark_names, make_completer, run_names
from coevo_gym.core.benchmark import require_spec_by_any_name
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason
from coevo_gym.runs.tasks.demonstrations import keep_demonstration, refusal_reason
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.play.game import Played, PlayedGame
from coevo_gym.view.play.scores import Scores, open_scores
from coevo_gym.view.play.source import PlaySource, benchmark_source, run_source
from coevo_gym.view.shell import require_server_packages, serve


def play_in_browser(
    source: PlaySource,
    demonstrations: Path,
    scores: Scores | None,
    first: Task | None,
    *,
    port: int,
    browser: bool,
    ready: Callable[[], None],
) -> None:
    """Serve the web interface for manual play, and stop on SIGINT or SIGTERM.

    ``first`` is the task that the start page offers first, and ``ready`` is called once the pages
    can be opened. Without ``scores``, scores are not saved. Port 0 selects any free port.

    Raises:
        ImportError: if the extra ``serve`` is not installed.
        ConfigError: if the port is taken.
    """
    require_server_packages("coevo play --web")
    from coevo_gym.view.play.episodes import EpisodeManager
    from coevo_gym.view.play.server import PlayRoutes, make_app

    _ = source.tasks  # reports a missing package here instead of on a page
    stopping = threading.Event()
    manager = EpisodeManager(source, demonstrations=demonstrations, scores=scores, first=first)

    def announce_url(url: str) -> None:
        ready()
        say(f"play {source.name} at {url}")
        say_to_stderr("reachable from this machine only · Ctrl-C stops it")

    def close_when_stopped() -> None:
        stopping.wait()
        manager.close()

    # Engines stop at once instead of finishing an answer that may take a minute.
    threading.Thread(target=close_when_stopped, daemon=True).start()
    serve(make_app(PlayRoutes(manager)), port, stopping, announce_url, browser=browser)


def play(
    benchmark: Annotated[
        str | None,
        typer.Argument(
            metavar="[BENCHMARK]",
            help="Name of a benchmark; see `coevo envs`.",
            autocompletion=make_completer(benchmark_names),
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name or id of a task.")] = None,
    split: Annotated[
        NativeSplit | None, typer.Option(help="Split to take the task from.", show_default="train")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed that selects the task.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Play tasks that were evolved in this run.",
            autocompletion=make_completer(run_names),
        ),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Play in the browser.")] = False,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="With --web: port to listen on; 0 for any free port."),
    ] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="With --web: open a browser window."),
    ] = True,
    name: Annotated[
        str | None,
        typer.Option(help="After each task, save the score as an evaluation with this name."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to save solved training episodes in, as demonstrations. In the terminal, "
            "every such episode is saved; with --web, only the episodes that you choose.",
            show_default="demonstrations/BENCHMARK.jsonl with --web",
        ),
    ] = None,
) -> None:
    """Play an episode by hand, in the terminal or in the browser.

    You see what an agent sees, and typos do not cost a step. In the terminal, choose an action by
    its number or type it. Type three backticks on the line before and on the line after a
    multi-line action. `coevo tasks` lists the tasks. --web opens a local page.

    With --name, you play the same tasks as `coevo eval` in the same order, and only your first
    episode on each task counts. You can therefore compare the results in evals/NAME with those of
    any policy. With --keep, your solved episodes are saved for imitation in a warm-up (see
    `warmup.demonstrations`). Episodes on validation and test tasks are never saved.

    For example:

      coevo play webshop --seed 1

      coevo play alfworld --web

      coevo play webshop --web --split val --name me

      coevo play --run quickstart --task webshop/evolved/0123456789ab
    """
    _check_options(benchmark, task, split, seed, run, name)
    with ExitStack() as closing_at_end, ExitStack() as starting:
        starting.enter_context(show_activity(f"starting {benchmark or run}"))
        if run is not None:
            source = run_source(RunFolder.of(run))
            if (
                benchmark is not None
                and require_spec_by_any_name(benchmark).name != source.benchmark
            ):
                raise ConfigError(f"{run} is a run on {source.benchmark}, not on {benchmark}.")
        else:
            source = benchmark_source(
                require_spec_by_any_name(cast(str, benchmark)).name, split or "train"
            )
        scores = None
        if name is not None:
            opened = open_scores(name, source.benchmark, source.split)
            scores = closing_at_end.enter_context(opened)
            source = replace(source, make_env=scores.make_env)
        if web:
            path = keep or Path("demonstrations") / f"{source.benchmark}.jsonl"
            chosen = _select_task(source, task, seed)
            play_in_browser(
                source, path, scores, chosen, port=port, browser=browser, ready=starting.close
            )
        else:
            _play_in_terminal(source, keep, scores, task, seed, starting)


def _check_options(
    benchmark: str | None,
    task: str | None,
    split: NativeSplit | None,
    seed: int | None,
    run: str | None,
    name: str | None,
) -> None:
    if benchmark is None and run is None:
        raise ConfigError("No benchmark given. Name a benchmark, or a run with --run.")
    if run is not None and split is not None:
        raise ConfigError("--split cannot be combined with --run: a run has only training tasks.")
    if name is not None and run is not None:
        raise ConfigError("--name saves scores for native tasks, so it does not work with --run.")
    if name is not None and (task is not None or seed is not None):
        raise ConfigError("With --name, tasks are played in a fixed order. Omit --task and --seed.")


def _select_task(source: PlaySource, task: str | None, seed: int | None) -> Task | None:
    """Return the task that ``--task`` or ``--seed`` selects, or None."""
    if task is not None:
        return source.find(task)
    return None if seed is None else source.draw_task(seed)


def _play_in_terminal(
    source: PlaySource,
    keep: Path | None,
    scores: Scores | None,
    task: str | None,
    seed: int | None,
    starting: ExitStack,
) -> None:
    """Play one episode in the terminal."""
    begun, env_seed = _select_task(source, task, seed), seed or 0
    if scores is not None:
        begun = scores.next_task()
        if begun is None:
            raise ConfigError(f"All tasks in {scores.folder.path} have been played.")
        env_seed = scores.seed_of(begun)
    chosen = begun or source.draw_task(None)
    env = source.make_env()
    read = partial(console.input, "> ")
    with closing(env):
        game = play_episode(env, chosen, console, read, seed=env_seed, ready=starting.close)
    if scores is not None:
        _save_score(scores, game)
    if keep is not None and game.played is not None:
        _save_demonstration(keep, source, chosen, game.played)


def _save_score(scores: Scores, game: PlayedGame) -> None:
    if game.played is None:
        if game.taken:
            scores.add_lost(game.task, len(game.taken), EndReason.ABANDONED, "left")
        return
    scores.add(game.task, game.played.counted)
    summary = scores.to_json()
    say_to_stderr(
        f"{summary['solved']} of {summary['played']} solved, "
        f"{summary['tasks'] - summary['played']} tasks to go. Saved in {summary['folder']}."
    )


def _save_demonstration(path: Path, source: PlaySource, task: Task, played: Played) -> None:
    if (why := refusal_reason(task, played.training)) or played.training is None:
        say_to_stderr(f"Not saved as a demonstration. {why}")
        return
    keep_demonstration(path, task, played.training, source.bench)
    say_to_stderr(f"Saved as a demonstration in {path}.")
