"""Progress reports for runs, on the command line and in ``progress.json``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from coevo_gym.core.spend import Cost
from coevo_gym.core.waiting import Pace, send_activity_to
from coevo_gym.runs.stop import Stopped
from coevo_gym.store.progress_file import (
    PastPhase,
    ProgressWriter,
    WorkProgress,
    WorkState,
    utc_now,
)

logger = logging.getLogger(__name__)

_EVERY_S = 1.0
_MAX_PHASES = 50


class ProgressSink(Protocol):
    """A receiver of progress reports. An implementation may ignore any of them."""

    def begin_part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Report that a unit of work, such as a run, has started. Parts have their own phases.

        Args:
            number: number of the part, from 1.
            of: number of parts.
            name: name of the part.
            later_s: estimated seconds for the later parts.
        """
        return

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Report the start of a phase.

        Args:
            name: name of the phase.
            total: amount of work; 0 if unknown.
            done: amount that was finished before.
            similar: number of later phases of the same size.
        """
        return

    def expect_steps(self, steps: int, words: str, *, whole: bool = False) -> None:
        """Report the maximum number of env steps left in the phase, for time estimates.

        Args:
            steps: the maximum.
            words: the same as text, such as ``"3 episodes × up to 15 steps"``.
            whole: True if the phase spends all of its time on these steps.
        """
        return

    def update(self, done: int, **facts: str) -> None:
        """Report the phase's progress, along with details such as ``success="31 %"``."""
        return

    def add_steps(self, steps: int, tokens: int) -> None:
        """Report new env steps and tokens; see :func:`coevo_gym.core.waiting.report_activity`.

        Several threads may call this method.
        """
        return

    def set_cost(self, cost: Cost) -> None:
        """Report a command's total cost so far, or the cost of its current part, such as a run."""
        return

    def say(self, text: str) -> None:
        """Print a line of text that remains on the screen."""
        return


class Silent(ProgressSink):
    """A progress display that shows nothing."""


SILENT: ProgressSink = Silent()


class PartProgress(ProgressSink):
    """A progress display that prefixes the names of phases with the name of a part of the work."""

    def __init__(self, progress: ProgressSink, name: str) -> None:
        self.progress, self.name = progress, name

    def begin_part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Do nothing, because the progress display counts whole parts, not the parts of a part."""

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Report that a phase has started, with the part's name before its own."""
        self.progress.begin_phase(f"{self.name}: {name}", total, done, similar=similar)

    def expect_steps(self, steps: int, words: str, *, whole: bool = False) -> None:
        """Pass the call to the wrapped sink."""
        self.progress.expect_steps(steps, words, whole=whole)

    def update(self, done: int, **facts: str) -> None:
        """Pass the call to the wrapped sink."""
        self.progress.update(done, **facts)

    def add_steps(self, steps: int, tokens: int) -> None:
        """Pass the call to the wrapped sink."""
        self.progress.add_steps(steps, tokens)

    def set_cost(self, cost: Cost) -> None:
        """Pass the call to the wrapped sink."""
        self.progress.set_cost(cost)

    def say(self, text: str) -> None:
        """Pass the call to the wrapped sink."""
        self.progress.say(text)


def max_env_steps_of_episodes(n: int, steps: int) -> tuple[int, str]:
    """Return the maximum number of env steps in ``n`` episodes, as a number and as text.

    Example:
        >>> max_env_steps_of_episodes(3, 15)
        (45, '3 episodes × up to 15 steps')
    """
    return n * steps, f"{n:,} episode{'s' * (n != 1)} × up to {steps} steps"


class PhasePace(Pace):
    """An estimator of the time left in a phase. At first, it relies on env steps.

    Attributes:
        steps: env steps in the phase so far.
        tokens: tokens read and written by models in the phase so far.
        whole: True if the phase spends all of its time on env steps.

    Example:
        >>> now = 0.0
        >>> pace = PhasePace(2, clock=lambda: now)
        >>> pace.expect_steps(2 * 15)
        >>> pace.add_steps(0, 0)
        >>> now = 60.0
        >>> pace.add_steps(2, 900)
        >>> pace.left_s()
        840.0
    """

    def __init__(
        self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(total, done, clock=clock)
        self.steps = self.tokens = 0
        self._most, self.whole = 0, False
        self._by_steps: Pace | None = None  # the clock starts when the first agent acts

    def expect_steps(self, steps: int, *, whole: bool = False) -> None:
        """Set the phase's maximum number of env steps; see :meth:`ProgressSink.expect_steps`."""
        self._most, self.whole = steps, whole

    def add_steps(self, steps: int, tokens: int) -> None:
        """Count env steps and tokens. The first call starts the timer."""
        self.steps += steps
        self.tokens += tokens
        if self._by_steps is None:
            self._by_steps = Pace(self._most, clock=self._clock)
        self._by_steps.update(self.steps)

    @property
    def share(self) -> float:
        """The share of the phase that is finished (a lower bound if only env steps are known)."""
        shares = (self.done / max(1, self.total), self.steps / max(1, self._most))
        return min(1.0, max(shares) if self.whole else shares[0])

    def left_s(self) -> float | None:
        """Return the estimated seconds left in the phase, or None if no agent has acted yet."""
        left = super().left_s()
        if self._by_steps is None or not self._most or (left is not None and not self.whole):
            return left
        by_steps = self._by_steps.left_s()
        return min((s for s in (left, by_steps) if s is not None), default=None)


class ProgressFile:
    """A progress receiver that also writes a folder's ``progress.json``.

    The file is written at the first phase, at the end, and about once a second in between. If it
    cannot be written, the run continues after one warning. ``work`` is a kind of work from
    :class:`~coevo_gym.store.progress_file.WorkProgress`.

    Example:
        >>> with ProgressFile(SILENT, Path("runs/mine"), "train", "mine") as file:  # doctest: +SKIP
        ...     file.begin_phase("train static", total=50)
    """

    def __init__(
        self,
        inner: ProgressSink,
        folder: Path,
        work: str,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._clock = inner, clock
        self._writer: ProgressWriter | None = ProgressWriter(folder)
        self._lock = threading.RLock()
        self._pace: PhasePace | None = None
        self._similar = 0
        self._later_s: float | None = 0.0
        self._before = self._here = Cost()  # cost of finished parts and of the current one
        self._written = float("-inf")
        self._watching = send_activity_to(self.add_steps)
        moment = utc_now()
        self._told = WorkProgress(
            work=work, name=name, state="running", started=moment, updated=moment, pid=os.getpid()
        )

    def __enter__(self) -> Self:
        self._watching.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._watching.__exit__(None, None, None)
        state: WorkState = "finished" if kind is None else "failed"
        if kind is not None and issubclass(kind, (Stopped, KeyboardInterrupt)):
            state = "stopped"
        with self._lock:
            self._end_phase()
            failed = kind.__name__ if kind is not None and state == "failed" else ""
            self._update_report(state=state, error=failed, left_s=None, all_left_s=None)
            # Work that was refused at the start leaves no file behind.
            if self._told.phase or self._told.parts > 1:
                self._write()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def begin_part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Record that a part of the work has started, and pass the call to the wrapped sink."""
        with self._lock:
            self._end_phase()
            self._before, self._here = self._before + self._here, Cost()
            self._later_s = later_s if number < of else 0.0
            self._update_report(part=number, parts=of, part_name=name)
        self._inner.begin_part(number, of, name, later_s)

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Record that a phase has started, and pass the call to the wrapped sink."""
        with self._lock:
            self._end_phase()
            self._pace = PhasePace(total, done, clock=self._clock)
            self._similar = similar
            self._update_report(phase=name, total=total, done=done, facts={}, rate=None, steps=0)
            self._update_time_left()
            self._write()
        self._inner.begin_phase(name, total, done, similar=similar)

    def expect_steps(self, steps: int, words: str, *, whole: bool = False) -> None:
        """Record the number of env steps expected in the phase, and pass it to the wrapped sink."""
        with self._lock:
            if self._pace is not None:
                self._pace.expect_steps(steps, whole=whole)
        self._inner.expect_steps(steps, words, whole=whole)

    def add_steps(self, steps: int, tokens: int) -> None:
        """Record env steps and tokens, and pass them to the wrapped sink."""
        with self._lock:
            if self._pace is not None:
                self._pace.add_steps(steps, tokens)
                self._update_report(steps=self._pace.steps, tokens=self._told.tokens + tokens)
                self._write_if_due()
            self._inner.add_steps(steps, tokens)

    def update(self, done: int, **facts: str) -> None:
        """Record the phase's progress, and pass it to the wrapped sink."""
        with self._lock:
            if self._pace is not None:
                self._pace.update(done)
                self._update_report(
                    done=done, rate=self._pace.rate, **({"facts": facts} if facts else {})
                )
                self._write_if_due()
        self._inner.update(done, **facts)

    def set_cost(self, cost: Cost) -> None:
        """Record the total cost so far, and pass it to the wrapped sink."""
        with self._lock:
            self._here = cost
            whole = self._before + cost
            self._update_report(cost=whole, tokens=max(self._told.tokens, whole.tokens))
        self._inner.set_cost(cost)

    def say(self, text: str) -> None:
        """Pass a line of text to the wrapped sink."""
        self._inner.say(text)

    def _end_phase(self) -> None:
        if self._pace is not None:
            past = PastPhase(
                name=self._told.phase, total=self._told.total, seconds=self._pace.elapsed_s
            )
            self._update_report(phases=(*self._told.phases, past)[-_MAX_PHASES:])
            self._pace = None

    def _update_time_left(self) -> None:
        """Report the estimated time left, both for the phase and in total."""
        pace = self._pace
        left = None if pace is None or not pace.total else pace.left_s()
        everything = None
        if pace is not None and left is not None and self._later_s is not None:
            whole = pace.estimated_total_s if self._similar else 0.0
            everything = None if whole is None else left + self._similar * whole + self._later_s
        self._update_report(left_s=left, all_left_s=everything)

    def _update_report(self, **changes: object) -> None:
        self._told = self._told.model_copy(update=changes)

    def _write_if_due(self) -> None:
        if self._clock() - self._written >= _EVERY_S:
            self._update_time_left()
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            return
        self._written = self._clock()
        self._update_report(updated=utc_now())
        try:
            self._writer.write(self._told)
        except OSError as error:
            logger.warning("the progress is no longer saved: %s", error)
            self._writer = None
