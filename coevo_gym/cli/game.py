"""``coevo play``: an episode by hand in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import gymnasium as gym
import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from coevo_gym.benchmark import get_benchmark
from coevo_gym.cli.output import console
from coevo_gym.cli.sources import BenchmarkName, find_benchmark
from coevo_gym.envs.base import TaskEnv

_SHOWN = 60


def play(
    benchmark: BenchmarkName,
    task: Annotated[str | None, typer.Option(help="Name or id of a task.")] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Picks the task, the same one again.")
    ] = None,
) -> None:
    """Play an episode by hand: choose actions by number, or type them.

    For example: coevo play webshop --seed 1
    """
    env = gym.make(find_benchmark(benchmark).env_id, split=split, disable_env_checker=True)
    bare = env.unwrapped
    assert isinstance(bare, TaskEnv)
    bare.reset(seed=seed, options={"task_id": task} if task is not None else None)
    play_episode(bare, console, lambda: console.input("> "))


def play_episode(env: TaskEnv, console: Console, read: Callable[[], str]) -> bool:
    """Let a person play the episode that ``env`` has begun.

    Args:
        env: a reset env.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.

    Returns:
        Whether the episode reached its end.
    """
    benchmark = get_benchmark(env.benchmark)
    console.print(Panel(escape(env.task.instruction), title=escape(env.task.name), expand=False))
    while True:
        choices = benchmark.choices(env.view)
        console.print(_page(env.view.observation, env.task.instruction))
        for number, choice in enumerate(choices[:_SHOWN], start=1):
            console.print(f"  [bold cyan]{number:3}[/]  {escape(choice)}", highlight=False)
        if len(choices) > _SHOWN:
            console.print(f"  … and {len(choices) - _SHOWN} more")
        step = f"{env.view.info['step'] + 1} of {env.max_steps}"
        console.print(f"[dim]step {step}: a number, an action as text, or q to leave[/]")
        try:
            line = read().strip()
        except EOFError:
            return False
        if line in ("q", "quit"):
            return False
        place = int(line) - 1 if line.isdecimal() and len(line) < 6 else -1
        action = choices[place] if 0 <= place < len(choices) else line
        _, reward, terminated, truncated, info = env.step(action)
        if not info["action_valid"]:
            reason = info.get(f"{env.benchmark}.reason") or info["error_kind"]
            console.print(f"[yellow]{escape(str(reason))}[/]")
        if terminated or truncated:
            colour = "green" if info["success"] else "red"
            outcome = f"score {info['score']:.2f}, reward {reward:.2f}"
            console.print(f"[bold {colour}]{info['end_reason']}[/]: {outcome}")
            return True


def _page(observation: str, instruction: str) -> str:
    """The page without the instruction, one part a line."""
    parts = observation.replace(instruction, "").split(" [SEP] ")
    return "\n".join(escape(part) for part in parts if part and part != "Instruction:")
