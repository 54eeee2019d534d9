"""Rounds of evolution, one at a time: planned and applied under a lock, run without it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import NamedTuple

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum, Evolver


class _Flight(NamedTuple):
    """A round under way, and its result to come."""

    round: Round
    landed: Future[RoundResult]


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
    def under_way(self) -> bool:
        """Whether a round is being run."""
        return self._flight is not None

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
        if self.evolver is None:
            raise ConfigError("This session has no evolver; pass one to run rounds.")
        with self._lock:
            self._idle.wait_for(lambda: self._flight is None or self._flight.round.id == round.id)
            flight, mine = self._flight, self._flight is None
            if flight is None:
                if self._last is not None and self._last[0] == round.id:
                    return self._last[1]
                flight = self._flight = _Flight(round, Future())
        if mine:
            self._fly(flight, self.evolver)
        return flight.landed.result()

    def restart(self) -> None:
        """Forget what was planned and run, once no round is under way; call it under the lock."""
        self._idle.wait_for(lambda: self._flight is None)
        self._planned = self._last = None

    def _fly(self, flight: _Flight, evolver: Evolver) -> None:
        """Run and apply; whatever happens, those who wait are told."""
        round = flight.round
        try:
            result = evolver.run(round)
            with self._lock:
                self.curriculum.apply(result)
                self._last = (round.id, result)
                if self._planned is not None and self._planned.id == round.id:
                    self._planned = None
            flight.landed.set_result(result)
        except BaseException as error:
            flight.landed.set_exception(error)
            raise
        finally:
            with self._lock:
                self._flight = None
                self._idle.notify_all()
