"""Evolution rounds, run one at a time and without holding the session's lock."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum, Evolver


@dataclass(frozen=True)
class _Flight:
    """A round that is running or waiting to be applied.

    Attributes:
        round: the planned round.
        beside: True if the round was launched in the background.
        found: the evolver's result.
        landed: the result once it has been applied.
    """

    round: Round
    beside: bool = False
    found: Future[RoundResult] = field(default_factory=Future)
    landed: Future[RoundResult] = field(default_factory=Future)


class Rounds:
    """A manager that plans, runs and applies a session's evolution rounds.

    Args:
        curriculum: plans rounds and applies their results.
        evolver: runs rounds; None if there are no rounds to run.
        rng: generator for planning rounds.
        lock: held during calls to the curriculum, but never during calls to the evolver.
    """

    def __init__(
        self, curriculum: Curriculum, evolver: Evolver | None, rng: Generator, lock: threading.Lock
    ) -> None:
        self.curriculum, self.evolver, self.rng = curriculum, evolver, rng
        self._lock = lock
        self._idle = threading.Condition(lock)
        self._planned: Round | None = None
        self._flight: _Flight | None = None
        self._last: tuple[str, RoundResult] | None = None

    @property
    def under_way(self) -> Round | None:
        """The round that is running or waiting to be applied."""
        return None if self._flight is None else self._flight.round

    def done(self, wait_s: float = 0.0) -> bool:
        """Return True if the current round has ended; the caller must hold the lock."""
        flight = self._flight
        return flight is not None and self._idle.wait_for(flight.found.done, wait_s)

    def plan(self) -> Round | None:
        """Return the round that is running or due, or None if there is no such round."""
        with self._lock:
            if self._flight is not None:
                return self._flight.round
            if self._planned is None and self.evolver is not None:
                self._planned = self.curriculum.plan(self.rng)
            return self._planned

    def run(self, round: Round, result: RoundResult | None = None) -> RoundResult:
        """Run a round and apply its result; see ``CurriculumSession.run_round``.

        The latest round does not run twice: another call returns the same result.

        Args:
            round: the round.
            result: the round's result if it has already been run elsewhere; None to run it.
        """
        evolver = self._evolver()
        with self._lock:
            self._idle.wait_for(lambda: self._flight is None or self._flight.round.id == round.id)
            flight, mine = self._flight, self._flight is None
            if flight is None:
                if self._last is not None and self._last[0] == round.id:
                    return self._last[1]
                flight = self._flight = _Flight(round)
        if mine and result is not None:
            flight.found.set_result(result)
        elif mine:
            self._fly(flight, evolver)
        return self._land(flight)

    def launch(self, round: Round) -> None:
        """Start a round in its own thread; see ``CurriculumSession.launch_round``."""
        evolver = self._evolver()
        with self._lock:
            if self._flight is not None:
                if self._flight.round.id != round.id:
                    raise ConfigError(
                        f"Cannot start {round.id} because {self._flight.round.id} is still "
                        "running. To wait for it, pass the running round to run_round()."
                    )
                return
            flight = self._flight = _Flight(round, beside=True)
        here = copy_context()  # observers of this thread's agents also observe the round's agents
        threading.Thread(
            target=here.run,
            args=(self._fly, flight, evolver),
            name=f"coevo-{round.id}",
            daemon=True,
        ).start()

    def call_off(self) -> None:
        """Wait until no round is running, and discard any result that has not been applied.

        A discarded round is then due again. Only the evolver can stop a running round early.
        """
        with self._lock:
            self._clear()

    def restart(self) -> None:
        """Wait for a running round, then discard all rounds; the caller must hold the lock."""
        self._clear()
        self._planned = self._last = None

    def _clear(self) -> None:
        self._idle.wait_for(self._nobody_runs)
        if self._flight is not None:
            self._flight.landed.set_exception(
                ConfigError(f"{self._flight.round.id} was cancelled.")
            )
        self._flight = None
        self._idle.notify_all()

    def _nobody_runs(self) -> bool:
        flight = self._flight
        return flight is None or (flight.beside and flight.found.done())

    def _evolver(self) -> Evolver:
        if self.evolver is None:
            raise ConfigError("This session has no evolver. Pass one to run rounds.")
        return self.evolver

    def _fly(self, flight: _Flight, evolver: Evolver) -> None:
        """Run a round, then wake up waiting callers even if the round failed."""
        try:
            flight.found.set_result(evolver.run(flight.round))
        except BaseException as error:
            flight.found.set_exception(error)
        with self._lock:
            self._idle.notify_all()

    def _land(self, flight: _Flight) -> RoundResult:
        """Wait for a round and apply its result, unless another caller has already applied it."""
        error = flight.found.exception()
        with self._lock:
            if not flight.landed.done():
                try:
                    if error is not None:
                        raise error
                    result, round = flight.found.result(), flight.round
                    self.curriculum.apply(result)
                    self._last = (round.id, result)
                    if self._planned is not None and self._planned.id == round.id:
                        self._planned = None
                    flight.landed.set_result(result)
                except BaseException as problem:
                    flight.landed.set_exception(problem)
                    raise
                finally:
                    if self._flight is flight:
                        self._flight = None
                    self._idle.notify_all()
        return flight.landed.result()
