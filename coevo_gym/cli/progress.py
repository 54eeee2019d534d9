"""What a person sees of a run: one live line a phase on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

_PLAIN_LINES = 10


class RunProgress:
    """Shows phases one after the other.

    Args:
        console: where. A terminal gets the live line, anything else about ten lines a phase.
        one_line: whether a phase's live line goes when the next one begins.

    Example:
        >>> with RunProgress(Console(width=80)) as progress:
        ...     progress.phase("train static", total=2)
        ...     progress.update(2, success="50 %")
        train static: 2/2, success 50 %
    """

    def __init__(self, console: Console, *, one_line: bool = False) -> None:
        self.console, self._one_line = console, one_line
        self._name, self._total, self._shown = "", 0, -1
        self._task: TaskID | None = None
        self._live = (
            Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(compact=True),
                console=console,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase.

        Args:
            name: what is being done.
            total: how much there is of it.
            done: how much of it was done before.
        """
        self._name, self._total, self._shown = name, total, done * _PLAIN_LINES // max(1, total)
        if self._live:
            if self._one_line and self._task is not None:
                self._live.remove_task(self._task)
            self._task = self._live.add_task(name, total=total, completed=done, facts="")

    def update(self, done: int, **facts: str) -> None:
        """Say how far the phase has come, with facts such as ``success="31 %"``."""
        text = "".join(f", {name.replace('_', ' ')} {value}" for name, value in facts.items())
        if self._live and self._task is not None:
            shown = min(done, self._total)
            self._live.update(self._task, completed=shown, facts=text.removeprefix(", "))
            return
        portion = done * _PLAIN_LINES // max(1, self._total)
        if portion > self._shown:
            self._shown = portion
            self.say(f"{self._name}: {done}/{self._total}{text}")

    def say(self, text: str) -> None:
        """Print a line; it stays above the live one."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.console.file.flush()
