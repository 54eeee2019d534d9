"""Progress display for installations: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coevo_gym.cli.output import busy
from coevo_gym.core.waiting import followed_by
from coevo_gym.runs.display import PLAIN_LINES
from coevo_gym.runs.progress import ProgressFile, ProgressSink


@contextmanager
def installing(what: str, folder: Path) -> Iterator[Callable[[str], None]]:
    """Show a spinner and write ``progress.json`` during an installation.

    Yields:
        A function that reports the current activity.
    """
    with (
        busy(f"installing {what}") as tell,
        ProgressFile(_Spinning(tell), folder, "install", what) as told,
        followed_by(_Following(told)),
    ):
        told.phase(f"installing {what}", 0)
        yield lambda now: told.phase(now, 0)


class _Following:
    """A log handler that reports progress messages as phases of the command."""

    def __init__(self, progress: ProgressFile) -> None:
        self._progress, self._what = progress, ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._what = what
            self._progress.phase(what, total, done)
        self._progress.update(done)


class _Spinning(ProgressSink):
    """A progress display: a spinner on a terminal, otherwise about ten lines per phase."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._name, self._total, self._shown = tell, "", 0, 0

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Report the start of a phase."""
        if self._name:  # the context manager has started its own phase
            self._tell(name)
        self._name, self._total, self._shown = name, total, 0

    def update(self, done: int, **facts: str) -> None:
        """Update the progress of the phase."""
        portion = done * PLAIN_LINES // max(1, self._total)
        if portion > self._shown:
            self._shown = portion
            self._tell(f"{self._name}: {done} of {self._total}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._tell(text)
