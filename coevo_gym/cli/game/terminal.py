"""Playing an episode by hand in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from coevo_gym.cli.game.hands import hand_of
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Task
from coevo_gym.web.grade import grade_of
from coevo_gym.web.play.game import Played, PlayedGame, RefusedAction
from coevo_gym.web.play.hands import action_of


def play_episode(
    env: gym.Env[str, str],
    task: Task,
    console: Console,
    read: Callable[[], str],
    *,
    seed: int = 0,
    ready: Callable[[], None] = lambda: None,
) -> PlayedGame:
    """Let a person play an episode.

    A typo gets an explanation and costs no step; see :class:`~coevo_gym.web.play.game.PlayedGame`.

    Args:
        env: the env to play in; this function resets it.
        task: the task to play.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.
        seed: seeds the env.
        ready: called once the episode has begun.

    Returns:
        The episode; without a record if the person left before its end.

    Raises:
        EnvBackendError: if the engine fails.
    """
    game = PlayedGame(env, task, seed)
    game.begin()
    ready()
    seat = _Seat(game, console, read)
    while game.played is None:
        action = seat.ask()
        if action is None:
            return game
        refusal = action if isinstance(action, RefusedAction) else game.act(action)
        if refusal is not None:
            _explain(console, refusal)
    _tell_outcome(console, game.played, task)
    return game


class _Seat:
    """The terminal in front of a player: shows the episode and asks for actions.

    Args:
        game: the episode.
        console: where to draw.
        read: gives one line of input; ``EOFError`` ends the game.
    """

    def __init__(self, game: PlayedGame, console: Console, read: Callable[[], str]) -> None:
        self._game, self._console, self._read = game, console, read
        self._benchmark = game.task.benchmark
        self._hand = hand_of(self._benchmark)
        self._choices_of = get_benchmark(self._benchmark).choices
        self._asked_for = ""
        self._drawn = -1  # number of steps before the page drawn last
        self._choices: Sequence[str] = ()

    def ask(self) -> str | RefusedAction | None:
        """Ask for an action; return it, why it was refused, or None if the player leaves."""
        view, step = self._game.view, len(self._game.taken)
        if self._drawn < step:
            self._choices = self._choices_of(view)
            self._draw()
            self._drawn = step
        while True:
            self._console.print(
                f"[dim]step {step + 1} of {self._game.max_steps}: {self._hand.hint}[/]"
            )
            try:
                line = self._hand.read(self._read)
                if line in ("q", "quit"):
                    return None
                found = self._hand.meant(line, view, self._choices, self._console, self._read)
            except EOFError:
                return None
            if found is not None:
                return action_of(self._benchmark, view, found)

    def _draw(self) -> None:
        """Draw the instruction if it is new, and the page."""
        view = self._game.view
        if view.instruction != self._asked_for:
            self._asked_for = view.instruction
            title = escape(self._game.task.name)
            self._console.print(Panel(escape(view.instruction), title=title, expand=False))
        self._hand.draw(view, self._choices, self._console)


def _explain(console: Console, refusal: RefusedAction) -> None:
    if refusal.shown:
        console.print(escape(refusal.shown), style="dim", highlight=False)
    console.print(f"[yellow]{escape(refusal.reason)}[/] [dim](this took no step)[/]")


def _tell_outcome(console: Console, played: Played, task: Task) -> None:
    """Print the outcome and the findings of the grader, failed checks first."""
    grade = grade_of(played.counted, task)
    colour = "green" if grade.success else "red"
    outcome = f"score {grade.score:.2f}, reward {grade.reward:.2f}"
    console.print(f"[bold {colour}]{grade.end_reason}[/]: {outcome}")
    for check in sorted(grade.checks, key=lambda check: check.passed is not False):
        if check.passed and not check.said:
            continue  # a passed test has no details
        mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]·[/]"}[check.passed]
        said = f": {escape(check.said)}" if check.said else ""
        console.print(f"  {mark} {escape(check.name)}{said}", highlight=False)
    held = sum(check.passed is True for check in grade.checks)
    tests = sum(check.passed is not None for check in grade.checks)
    if tests:
        console.print(f"  [dim]{held} of {tests} checks hold[/]")
