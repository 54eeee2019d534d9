"""Progress display: live lines on a terminal, one output in a notebook, else plain lines."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.segment import Segment
from rich.text import Text

from coevo_gym.core import waiting
from coevo_gym.core.spaces import make_visible
from coevo_gym.core.spend import Cost
from coevo_gym.core.text_tables import html_text
from coevo_gym.core.waiting import format_duration
from coevo_gym.runs.progress_reports import PhasePace

PLAIN_LINES = 10
"""Lines per phase without a terminal."""
_LONG_S = 20
"""Minimum remaining time of a phase, in seconds, for plain lines to show it."""


class SafeConsole(Console):
    """A console that replaces control characters in all output with their names.

    Task names, instructions, pages and error messages may contain escape sequences that must not
    reach the terminal. Only sequences that Rich itself adds (colours, cursor movements) may do so.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to rich text without control characters, so that tables stay aligned."""
        return super().render_str(make_visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render an object as segments, replacing control characters even in styled text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=make_visible(segment.text))


def can_redraw(console: Console) -> bool:
    """Return True if lines of the output can be redrawn, because it is a terminal.

    With ``FORCE_COLOR``, which notebooks set for the programs that they start, Rich treats every
    output as a terminal. A pipe would then contain each state of a line.
    """
    return console.is_terminal and console.file.isatty()


class RunProgress:
    """A progress display that shows one phase at a time.

    Args:
        console: console that shows a live line on a terminal, else about ten lines per phase.
        one_line: remove the live line of a phase when the next phase begins.

    Example:
        >>> with RunProgress(Console(width=80)) as progress:
        ...     progress.begin_phase("train static", total=2)
        ...     progress.update(2, success="50 %")
        train static: 2/2, success 50 %
    """

    def __init__(self, console: Console, *, one_line: bool = False) -> None:
        self.console, self._one_line = console, one_line
        self._name, self._shown = "", -1
        self._facts = self._expected = ""
        self._pace, self._cost, self._tokens = PhasePace(0), Cost(), 0
        self._task: TaskID | None = None
        self._live = (
            Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                _Left(),
                console=console,
            )
            if can_redraw(console)
            else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def begin_part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Reset the token count when the next cell or table row of an experiment starts."""
        self._tokens = 0

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Report the start of a phase; see ``ProgressSink``."""
        self._name, self._shown = name, done * PLAIN_LINES // max(1, total)
        self._facts = self._expected = ""
        self._pace = PhasePace(total, done)
        if self._live:
            if self._one_line and self._task is not None:
                self._live.remove_task(self._task)
            self._task = self._live.add_task(
                name, total=total, completed=done, facts="", pace=self._pace
            )

    def expect_steps(self, steps: int, words: str, *, whole: bool = False) -> None:
        """Set the expected number of env steps. Time estimates begin once a model has answered.

        Phases without a model are short, so no estimate is printed for them.
        """
        self._pace.expect_steps(steps, whole=whole)
        self._expected = words

    def update(self, done: int, **facts: str) -> None:
        """Report the phase's progress, along with details such as ``success="31 %"``."""
        self._pace.update(done)
        self._facts = "".join(
            f", {name.replace('_', ' ')} {value}" for name, value in facts.items()
        )
        self._show()

    def add_steps(self, steps: int, tokens: int) -> None:
        """Count env steps and tokens, and update the display in phases that query models."""
        self._pace.add_steps(steps, tokens)
        self._tokens += tokens
        if not self._pace.tokens:
            return
        if self._expected and (left := self._pace.left_s()) is not None:
            # Before the first update, a pace in env steps does not include the time for learning.
            known = "about" if self._pace.whole or self._pace.rate else "without learning, about"
            self.say(f"{self._name}: {self._expected}: {known} {format_duration(left)}")
            self._expected = ""
        self._show()

    def _describe_state(self) -> str:
        """Describe the phase's facts, tokens and cost; each begins with a comma."""
        pace = self._pace
        text = self._facts
        if pace.tokens:
            text += f", {pace.steps:,} steps" if pace.steps else ""
        text += f", {self._tokens:,} tokens" if self._tokens else ""
        return text + (f", {self._cost.usd:.2f} USD" if self._cost.usd else "")

    def _show(self) -> None:
        """Show the phase's progress. Without a terminal, print at most about ten lines."""
        pace, text = self._pace, self._describe_state()
        if self._live and self._task is not None:
            n_done = min(pace.done, pace.total)
            self._live.update(self._task, completed=n_done, facts=text.removeprefix(", "))
            return
        # Steps that are expected may be taken before the last episodes have been graded.
        most = PLAIN_LINES if pace.done >= pace.total else PLAIN_LINES - 1
        portion = min(most, int(pace.share * PLAIN_LINES))
        if portion > self._shown:
            self._shown = portion
            left = pace.left_s()
            text += (
                f", {format_duration(left)} left" if left is not None and left >= _LONG_S else ""
            )
            self.say(f"{self._name}: {pace.done}/{pace.total}{text}")

    def set_cost(self, cost: Cost) -> None:
        """Record the total cost so far. The display shows it at its next update."""
        self._cost, self._tokens = cost, max(self._tokens, cost.tokens)

    def say(self, text: str) -> None:
        """Print a line above the progress display."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        self.console.file.flush()


_EVERY_S = 0.25
"""Minimum time between two updates of the output, in seconds."""
_MAX_LINES = 30
_MAX_LINE = 2_000


class ProgressOutput(NamedTuple):
    """The output of a call's progress in a notebook.

    Attributes:
        html: the lines as HTML, in the notebook's own colours.
        text: the lines as plain text, for programs that do not show HTML.
    """

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


class _Line:
    """A line of the output: a message, or a phase with its progress."""

    def __init__(self, text: str, total: int = 0) -> None:
        self.text, self.total = text, total
        self.done, self.state = 0, ""

    def to_html(self) -> str:
        if not self.total:
            return html_text(self.text + self.state)
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        count = html_text(f"{self.done:,}/{self.total:,}{self.state}")
        return f"{bar} {html_text(self.text)} {count}"

    def to_text(self) -> str:
        count = f": {self.done}/{self.total}" if self.total else ""
        return make_visible(f"{self.text}{count}{self.state}")


class NotebookProgress(RunProgress):
    """A progress display in a single output of a notebook's cell.

    The output shows the latest phases and messages, and is updated at most four times a second, so
    it stays small however long the work takes. Only the thread that created the display updates
    it, because a notebook assigns what other threads print to any cell.
    """

    def __init__(self) -> None:
        super().__init__(SafeConsole(file=io.StringIO()))
        self._lines = deque[_Line](maxlen=_MAX_LINES)
        self._n_lines, self._phase = 0, _Line("")
        self._update: Callable[[ProgressOutput], Any] | None = None
        self._thread, self._drawn_at = threading.get_ident(), float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._draw()

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Add a line for the phase."""
        super().begin_phase(name, total, done, similar=similar)
        self._phase = self._add(_Line(name, total))
        self._show()

    def say(self, text: str) -> None:
        """Add a line."""
        self._add(_Line(text[:_MAX_LINE]))
        self._draw_if_due()

    def _add(self, line: _Line) -> _Line:
        self._lines.append(line)
        self._n_lines += 1
        return line

    def _show(self) -> None:
        """Update the phase's line."""
        pace, state = self._pace, self._describe_state()
        left = pace.left_s() if pace.done < pace.total else None
        line = self._phase
        line.done = min(pace.done, pace.total)
        line.state = state + ("" if left is None else f", {format_duration(left)} left")
        self._draw_if_due()

    def _draw_if_due(self) -> None:
        if threading.get_ident() == self._thread and time.monotonic() - self._drawn_at >= _EVERY_S:
            self._draw()

    def _draw(self) -> None:
        if not self._lines:
            return
        from IPython import display

        self._drawn_at = time.monotonic()
        output, show = self._make_output(), cast(Any, display).display
        if self._update is None:
            self._update = show(output, display_id=True).update
        else:
            self._update(output)

    def _make_output(self) -> ProgressOutput:
        lines = list(self._lines)
        earlier = self._n_lines - len(lines)
        more = [_Line(f"… {earlier:,} earlier lines")] if earlier else []
        return ProgressOutput(
            f"<div>{'<br>'.join(line.to_html() for line in [*more, *lines])}</div>",
            "\n".join(line.to_text() for line in [*more, *lines]),
        )


class _Teller(logging.Handler):
    """A log handler that shows warnings and progress messages to the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.name == waiting.logger.name else f"{record.levelname.lower()}: "
        self._say(f"{prefix}{record.getMessage()}")


@contextmanager
def send_logs_to(say: Callable[[str], None]) -> Iterator[None]:
    """Send the package's log messages only to ``say`` during a ``with`` block."""
    logger = logging.getLogger("coevo_gym")
    before, logger.handlers = logger.handlers, [_Teller(say)]
    try:
        yield
    finally:
        logger.handlers = before


class _Left(ProgressColumn):
    """A progress column that shows a phase's remaining time."""

    def render(self, task: Task) -> Text:
        left = task.fields["pace"].left_s()
        text = "" if left is None or task.finished else f"{format_duration(left)} left"
        return Text(text, style="progress.remaining")
