"""``coevo play``: an episode by hand in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Annotated, cast

import gymnasium as gym
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from coevo_gym.cli.output import busy, console
from coevo_gym.cli.sources import find_benchmark
from coevo_gym.core.benchmark import find_task, get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, EvalEpisode, Finished, run_one
from coevo_gym.store.folder import RunFolder

_SHOWN = 60


def play(
    benchmark: Annotated[
        str | None,
        typer.Argument(metavar="[BENCHMARK]", help="Name of a benchmark; see `coevo envs`."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name or id of a task.")] = None,
    split: Annotated[
        str | None, typer.Option(help="train, val or test.", show_default="train")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Picks the task, the same one again.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Play a task that evolved in this run."),
    ] = None,
) -> None:
    """Play an episode by hand: choose actions by number, or type them.

    A typo costs no step. Three backticks begin an action of several lines, and end it. `coevo
    tasks` lists what can be played.

    For example:

      coevo play webshop --seed 1

      coevo play --run quickstart --task webshop/evolved/0123456789ab
    """
    if (benchmark is None) is (run is None):
        raise ConfigError("What is to be played? Name a benchmark, or a run with --run.")
    if run is not None and split is not None:
        raise ConfigError("--split is for a benchmark; the tasks of a run are for training.")
    with ExitStack() as starting:
        starting.enter_context(busy(f"starting {benchmark or run}"))
        if run is not None:
            env, chosen = _task_of_run(RunFolder.of(run), task, seed)
        else:
            spec = find_benchmark(cast(str, benchmark))
            made = gym.make(spec.env_id, split=split or "train", disable_env_checker=True)
            env = cast(TaskEnv, made.unwrapped)
            chosen = _drawn(env.tasks, seed) if task is None else find_task(spec.name, task)
        read = partial(console.input, "> ")
        with closing(env):
            play_episode(env, chosen, console, read, seed=seed or 0, ready=starting.close)


def _task_of_run(folder: RunFolder, wanted: str | None, seed: int | None) -> tuple[TaskEnv, Task]:
    """An env as the run made it, and the wanted task or one that evolved."""
    from coevo_gym.run.assembly import Assembly
    from coevo_gym.run.listing import evolved_tasks, find_run_task
    from coevo_gym.run.manifest import read_manifest

    if wanted is not None:
        task: Task = find_run_task(folder, wanted)
    else:
        evolved = evolved_tasks(folder)
        if not evolved:
            raise ConfigError(f"No task has evolved in {folder.path.name} yet.")
        task = _drawn(evolved, seed)
    return cast(TaskEnv, Assembly(read_manifest(folder)[1]).make_env()), task


def _drawn(tasks: Sequence[Task], seed: int | None) -> Task:
    """The task that an env with this seed would begin with."""
    return tasks[int(np.random.default_rng(seed).integers(len(tasks)))]


def play_episode(
    env: TaskEnv,
    task: Task,
    console: Console,
    read: Callable[[], str],
    *,
    seed: int = 0,
    ready: Callable[[], None] = lambda: None,
) -> bool:
    """Let a person play an episode.

    A typo is explained and costs no step: where an action did nothing because it cannot be done,
    the episode is begun again and the steps before it are repeated, which leads to the same state.

    Args:
        env: a bare env; it is reset here.
        task: what to play.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.
        seed: seeds the env.
        ready: called when the episode has begun.

    Returns:
        Whether the episode reached its end.
    """
    person = _Person(env, console, read, ready)
    with closing(EnvPool(lambda: env, max_envs=1)) as envs:
        while True:
            found = run_one(EvalEpisode(task, seed), person, envs)
            if isinstance(found, Finished):
                if not person.mistyped():
                    _tell_outcome(console, found.record)
                    return True
            elif person.left:
                return False
            elif found.reason is not EndReason.ABANDONED:
                raise found.error


class _Person:
    """An agent that asks somebody at a terminal.

    A typo ends the episode; in the next one, what was done before it is done again by itself.

    Args:
        env: where the episode runs.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.
        ready: called when an episode has begun.

    Attributes:
        left: whether the person has left the game.
    """

    def __init__(
        self,
        env: TaskEnv,
        console: Console,
        read: Callable[[], str],
        ready: Callable[[], None],
    ) -> None:
        self.left = False
        self._env, self._console, self._read, self._ready = env, console, read, ready
        self._choices = get_benchmark(env.benchmark).choices
        self._taken: list[str] = []
        self._typed = ""
        self._asked_for = ""
        self._drawn = -1  # steps before the page that was drawn last

    def act(self, views: Sequence[View]) -> list[Act]:
        """What the person types, or has typed before in another episode."""
        (view,) = views
        self._ready()
        step = len(view.history)
        if step < len(self._taken):
            return [Act(self._taken[step])]
        if step > len(self._taken):
            if self.mistyped():
                return [Act("", end=EndReason.ABANDONED)]
            self._taken.append(self._typed)
        choices = self._choices(view)
        if self._drawn < step:
            self._draw(view, choices)
            self._drawn = step
        typed = self._ask(choices)
        if typed is None:
            self.left = True
            return [Act("", end=EndReason.ABANDONED)]
        self._typed = typed
        return [Act(typed)]

    def mistyped(self) -> bool:
        """Whether what was typed last could not be done; if so, it is explained."""
        info = self._env.info
        if info["action_valid"] or self._env.calls:
            return False
        reason = info.get(f"{self._env.benchmark}.reason") or info["error_kind"]
        shown = escape(self._env.view.observation)
        self._console.print(shown, style="dim", highlight=False)
        self._console.print(f"[yellow]{escape(str(reason))}[/] [dim](this took no step)[/]")
        return True

    def _draw(self, view: View, choices: Sequence[str]) -> None:
        """What is asked for, where that is new, and the page."""
        if view.instruction != self._asked_for:
            self._asked_for = view.instruction
            title = escape(self._env.task.name)
            self._console.print(Panel(escape(view.instruction), title=title, expand=False))
        _draw(self._console, view.observation, choices)

    def _ask(self, choices: Sequence[str]) -> str | None:
        """The action that the person means; None if it leaves."""
        step = f"{len(self._taken) + 1} of {self._env.max_steps}"
        while True:
            self._console.print(f"[dim]step {step}: a number, an action as text, or q to leave[/]")
            try:
                line = _read_action(self._read)
            except EOFError:
                return None
            if line in ("q", "quit"):
                return None
            action = _meant(line, choices)
            if action is not None:
                return action
            most = len(choices)
            self._console.print(f"[yellow]Type a number from 1 to {most}, or an action.[/]")


def _tell_outcome(console: Console, episode: EvalTrajectory) -> None:
    colour = "green" if episode.success else "red"
    outcome = f"score {episode.score:.2f}, reward {episode.steps[-1].reward:.2f}"
    console.print(f"[bold {colour}]{episode.end_reason}[/]: {outcome}")


def _draw(console: Console, observation: str, choices: Sequence[str]) -> None:
    """The page that the agent sees, one part a line, and what may be done."""
    parts = observation.split(" [SEP] ")
    console.print("\n".join(escape(part) for part in parts), highlight=False)
    for number, choice in enumerate(choices[:_SHOWN], start=1):
        console.print(f"  [bold cyan]{number:3}[/]  {escape(choice)}", highlight=False)
    if len(choices) > _SHOWN:
        console.print(f"  … and {len(choices) - _SHOWN} more")


def _read_action(read: Callable[[], str]) -> str:
    """A line, or a block of lines between two of three backticks."""
    lines = [read().strip()]
    if lines[0].startswith("```") and lines[0].count("```") == 1:
        while lines[-1].strip() != "```" or len(lines) == 1:
            lines.append(read())
    return "\n".join(lines)


def _meant(line: str, choices: Sequence[str]) -> str | None:
    """The action that a line stands for; None if it stands for none."""
    if not line.isdecimal():
        return line or None
    place = int(line) - 1 if len(line) < 6 else -1
    return choices[place] if 0 <= place < len(choices) else None
