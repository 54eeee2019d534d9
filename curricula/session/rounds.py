"""Rounds of evolution, one at a time: planned and applied under a lock, run without it."""

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
    """A round under way.

    Attributes:
        round: the order.
        beside: whether nobody waits for it yet.
        found: the evolver's result.
        landed: the result, once it is applied.
    """

    round: Round
    beside: bool = False
    found: Future[RoundResult] = field(default_factory=Future)
    landed: Future[RoundResult] = field(default_factory=Future)


class Rounds:
    """Plans, runs and applies the rounds of a session.

    Args:
        curriculum: plans rounds, and takes their results.
        evolver: carries them out; None where none are run.
        rng: what rounds are planned with.
        lock: held while the curriculum is called, never while the evolver is.
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
        """The round that is being run, or whose result waits to be applied."""
        return None if self._flight is None else self._flight.round

    def done(self, wait_s: float = 0.0) -> bool:
        """Whether the round under way is through, or has failed; call it under the lock.

        Args:
            wait_s: longest wait for that, without the lock.
        """
        flight = self._flight
        return flight is not None and self._idle.wait_for(flight.found.done, wait_s)

    def plan(self) -> Round | None:
        """The round under way, or the one that is due; None if none is, or nobody can run it."""
        with self._lock:
            if self._flight is not None:
                return self._flight.round
            if self._planned is None and self.evolver is not None:
                self._planned = self.curriculum.plan(self.rng)
            return self._planned

    def run(self, round: Round) -> RoundResult:
        """Run a round and apply what it found; who asks for one under way waits for it.

        The latest round is not run twice: asked for it again, its result is given again.

        Raises:
            ConfigError: if there is no evolver.
        """
        evolver = self._evolver()
        with self._lock:
            self._idle.wait_for(lambda: self._flight is None or self._flight.round.id == round.id)
            flight, mine = self._flight, self._flight is None
            if flight is None:
                if self._last is not None and self._last[0] == round.id:
                    return self._last[1]
                flight = self._flight = _Flight(round)
        if mine:
            self._fly(flight, evolver)
        return self._land(flight)

    def launch(self, round: Round) -> None:
        """Run a round in a thread of its own; what it finds waits until :meth:`run` applies it.

        Raises:
            ConfigError: if there is no evolver, or another round is under way.
        """
        evolver = self._evolver()
        with self._lock:
            if self._flight is not None:
                if self._flight.round.id != round.id:
                    raise ConfigError(
                        f"{round.id} cannot begin: {self._flight.round.id} is under way, and one "
                        "round runs at a time. Wait for that with run_round(round)."
                    )
                return
            flight = self._flight = _Flight(round, beside=True)
        here = copy_context()  # who watches this thread's agents watches the round's, too
        threading.Thread(
            target=here.run,
            args=(self._fly, flight, evolver),
            name=f"coevo-{round.id}",
            daemon=True,
        ).start()

    def call_off(self) -> None:
        """Wait until no round is being run; what one has found that is not applied is forgotten.

        It is due again then. Nobody but its evolver can end it sooner.
        """
        with self._lock:
            self._clear()

    def restart(self) -> None:
        """Forget what was planned and run, once no round is under way; call it under the lock."""
        self._clear()
        self._planned = self._last = None

    def _clear(self) -> None:
        self._idle.wait_for(self._nobody_runs)
        if self._flight is not None:
            self._flight.landed.set_exception(
                ConfigError(f"{self._flight.round.id} is called off.")
            )
        self._flight = None
        self._idle.notify_all()

    def _nobody_runs(self) -> bool:
        flight = self._flight
        return flight is None or (flight.beside and flight.found.done())

    def _evolver(self) -> Evolver:
        if self.evolver is None:
            raise ConfigError("This session has no evolver; pass one to run rounds.")
        return self.evolver

    def _fly(self, flight: _Flight, evolver: Evolver) -> None:
        """Have a round carried out; whatever happens, who waits for it is told."""
        try:
            flight.found.set_result(evolver.run(flight.round))
        except BaseException as error:
            flight.found.set_exception(error)
        with self._lock:
            self._idle.notify_all()

    def _land(self, flight: _Flight) -> RoundResult:
        """Wait for a round and apply what it found, unless somebody else has by then."""
        error = flight.found.exception()
        with self._lock:
            if not flight.landed.done():
                try:
                    if error is not None:
                        raise error
                    self._apply(flight.round, flight.found.result())
                    flight.landed.set_result(flight.found.result())
                except BaseException as problem:
                    flight.landed.set_exception(problem)
                    raise
                finally:
                    if self._flight is flight:
                        self._flight = None
                    self._idle.notify_all()
        return flight.landed.result()

    def _apply(self, round: Round, result: RoundResult) -> None:
        self.curriculum.apply(result)
        self._last = (round.id, result)
        if self._planned is not None and self._planned.id == round.id:
            self._planned = None
