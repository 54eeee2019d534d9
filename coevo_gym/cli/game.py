"""``coevo play``: an episode by hand in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, cast

import gymnasium as gym
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from coevo_gym.cli.output import busy, console
from coevo_gym.cli.sources import find_benchmark
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import Task
from coevo_gym.envs.base import TaskEnv
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
    if run is not None:
        if split is not None:
            raise ConfigError("--split is for a benchmark; the tasks of a run are for training.")
        env = _env_of_run(RunFolder.of(run), task, seed)
    else:
        spec = find_benchmark(cast(str, benchmark))
        with busy(f"starting {spec.name}"):
            made = gym.make(spec.env_id, split=split or "train", disable_env_checker=True)
            env = cast(TaskEnv, made.unwrapped)
            env.reset(seed=seed, options={"task_id": task} if task is not None else None)
    try:
        play_episode(env, console, lambda: console.input("> "))
    finally:
        env.close()


def _env_of_run(folder: RunFolder, wanted: str | None, seed: int | None) -> TaskEnv:
    """An env as the run made it, that has begun the wanted task, or one that evolved."""
    from coevo_gym.run.assembly import Assembly
    from coevo_gym.run.listing import evolved_tasks, find_run_task
    from coevo_gym.run.manifest import read_manifest

    if wanted is not None:
        task: Task = find_run_task(folder, wanted)
    else:
        evolved = evolved_tasks(folder)
        if not evolved:
            raise ConfigError(f"No task has evolved in {folder.path.name} yet.")
        task = evolved[int(np.random.default_rng(seed).integers(len(evolved)))]
    with busy(f"starting {task.benchmark}"):
        env = cast(TaskEnv, Assembly(read_manifest(folder)[1]).make_env())
        env.reset(seed=seed, options={"task": task})
    return env


def play_episode(env: TaskEnv, console: Console, read: Callable[[], str]) -> bool:
    """Let a person play the episode that ``env`` has begun.

    A typo is explained and costs no step: where an action did nothing because it cannot be done,
    the episode is begun again and the steps before it are repeated, which leads to the same state.

    Args:
        env: a reset env.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.

    Returns:
        Whether the episode reached its end.
    """
    benchmark, taken, shown = get_benchmark(env.benchmark), list[str](), ""
    while True:
        if env.instruction != shown:
            shown = env.instruction
            console.print(Panel(escape(shown), title=escape(env.task.name), expand=False))
        choices = benchmark.choices(env.view)
        _draw(console, env.view.observation, choices)
        while True:
            step = f"{len(taken) + 1} of {env.max_steps}"
            console.print(f"[dim]step {step}: a number, an action as text, or q to leave[/]")
            try:
                line = _read_action(read)
            except EOFError:
                return False
            if line in ("q", "quit"):
                return False
            action = _meant(line, choices)
            if action is None:
                console.print(f"[yellow]Type a number from 1 to {len(choices)}, or an action.[/]")
                continue
            observation, reward, terminated, truncated, info = env.step(action)
            if info["action_valid"] or env.calls:
                break
            reason = info.get(f"{env.benchmark}.reason") or info["error_kind"]
            console.print(escape(observation), style="dim", highlight=False)
            console.print(f"[yellow]{escape(str(reason))}[/] [dim](this took no step)[/]")
            _begin_again(env, taken)
        taken.append(action)
        if terminated or truncated:
            colour = "green" if info["success"] else "red"
            outcome = f"score {info['score']:.2f}, reward {reward:.2f}"
            console.print(f"[bold {colour}]{info['end_reason']}[/]: {outcome}")
            return True


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


def _begin_again(env: TaskEnv, taken: Sequence[str]) -> None:
    """Bring the episode back to where it was after these actions."""
    env.reset(options={"task": env.task})
    for action in taken:
        env.step(action)
