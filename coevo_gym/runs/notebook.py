"""Progress display for notebooks: one output for each call, which is updated in place."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

from coevo_gym.core.spaces import make_visible
from coevo_gym.core.text_tables import html_text
from coevo_gym.core.waiting import format_duration
from coevo_gym.runs.display import RunProgress, SafeConsole

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
        return f"{html_text(self.text)} {bar} {count}"

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
