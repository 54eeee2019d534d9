"""A curriculum session whose acknowledged calls survive a process crash.

    with JournaledSession(make, evolver, Path("curriculum.db"), lease_s=600) as session:
        ticket = session.take(request="worker-3/17")
        session.report(ticket.id, trajectory)      # on disk when it returns

It does not contain env or network code; a server and an actor expose it to clients.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum, Evolver, Later, Ticket
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.curricula.pool.task_pool import require_trainable_with_goal
from coevo_gym.curricula.saved import MAX_COUNT
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.session_calls import (
    AnswerT,
    CloseSpentStep,
    Evolve,
    GiveBack,
    Renew,
    Report,
    SessionCall,
    Sweep,
    Take,
    TaskSession,
    to_trajectory,
)
from coevo_gym.serve.journal import Journal
from coevo_gym.serve.recorded import Recorded


def check_episode_recordable(episode: Trajectory, body: Mapping[str, Any], task: Task) -> None:
    """Check that an episode can be recorded and saved.

    Groups are recorded when their last episode arrives, and recording reads the benchmark's symbol
    of every step.

    Raises:
        TaskError: if the episode cannot be recorded or saved.
    """
    try:
        json.dumps(body, allow_nan=False)
    except ValueError as error:
        raise TaskError(f"The trajectory cannot be stored as JSON: {error}.") from error
    for version in episode.policy_versions:
        if abs(version) > MAX_COUNT:
            raise TaskError(f"A policy version must be at most {MAX_COUNT}, got {version}")
    benchmark = get_benchmark(task.benchmark)
    for number, step in enumerate(episode.steps):
        try:
            benchmark.symbol(step).split()
        except Exception as error:
            raise TaskError(
                f"{task.benchmark} cannot interpret step {number} of the trajectory (action "
                f"{step.action[:200]!r}): {type(error).__name__}: {error}"
            ) from error


logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0


class JournaledSession(TaskSession):
    """A ``CurriculumSession`` that survives crashes.

    Each call that changes something is written to a journal with its time before it is answered.
    Reopening the journal replays the calls in order, which restores the session: issued tickets
    stay valid for the rest of their leases, and an acknowledged report is neither lost nor counted
    twice. Time while the session is closed does not count.

    A call is either rejected before it changes anything, or executed and recorded. If anything else
    happens, such as an exception in the curriculum or a full disk, the session in memory may differ
    from its journal. Every call then raises a :class:`StoreError` until the session is reopened.

    Due rounds run in a separate thread; their results are written to the journal before they are
    applied. A failed round is retried after increasing pauses.

    Args:
        make: function that creates the curriculum. It is called when the journal is opened and
            for every state that is loaded, and must return a new curriculum each time.
        evolver: evolver that runs the rounds.
        path: path of the journal; created if missing.
        about: settings of the session, such as the names of benchmark and method. A journal can
            only be opened with the same settings, including the numeric arguments below.
        group_size: K, episodes per group.
        groups_per_step: groups that the trainer learns from at once.
        seed: seed of the whole task stream.
        max_reissues: maximum number of retries for one position in a group.
        max_staleness: maximum number of policy versions that a group may span and still count.
        lease_s: seconds after which a ticket expires unless it is renewed.
        monotonic: clock of this process, in seconds.
        recover: if a call cannot be replayed, continue from the state before it. A copy of the
            whole journal is kept, and all issued tickets become void.

    Attributes:
        about: settings of the session, including the numeric arguments.
        recovered: description of what recovery dropped and where the copy is; "" if nothing.

    Raises:
        StoreError: if the journal cannot be used, belongs to another session, or has a call that
            cannot be replayed.
    """

    def __init__(
        self,
        make: Callable[[], Curriculum],
        evolver: Evolver,
        path: Path,
        *,
        about: Mapping[str, Any] = FrozenDict(),
        group_size: int = 8,
        groups_per_step: int = 1,
        seed: int = 0,
        max_reissues: int = 3,
        max_staleness: int = 0,
        lease_s: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
        recover: bool = False,
    ) -> None:
        made_with: dict[str, Any] = {
            "group_size": group_size,
            "groups_per_step": groups_per_step,
            "seed": seed,
            "max_reissues": max_reissues,
            "max_staleness": max_staleness,
            "lease_s": lease_s,  # needed to replay expirations
        }
        self._evolver = evolver
        self.about = {**about, **made_with}
        self.benchmark = str(about.get("benchmark", ""))
        self._lock = threading.RLock()
        self._monotonic = monotonic
        self.lease_s = lease_s

        def make_session(clock: Callable[[], float]) -> CurriculumSession:
            return CurriculumSession(make(), evolver, **made_with, clock=clock)

        self._round: Round | None = None
        self._failures, self._why_failed = 0, ""
        self._result: RoundResult | None = None
        self._collected: tuple[str, RoundResult] | None = None
        self._stop = threading.Event()
        journal = Journal(path, self.about)
        try:
            self._kept = Recorded(make_session, journal, recover=recover)
        except BaseException:
            journal.close()
            raise
        self.recovered = self._kept.recovered
        self._base = self._kept.now - monotonic()
        self.replayed = self._session.ticket_counts["taken"] > 0
        for id in list(self._kept.mine):  # the processes that ran these episodes have ended
            self.give_back(self._add_epoch_to_id(id), EndReason.WORKER_LOST)
        self._start_due_round()

    @property
    def _session(self) -> CurriculumSession:
        return self._kept.session

    # Interface for servers and actors.

    @property
    def curriculum(self) -> Curriculum:
        """The curriculum that selects the tasks."""
        return self._session.curriculum

    @property
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """Tickets that have been neither reported nor returned, oldest first."""
        return tuple(self._add_epoch(ticket) for ticket in self._session.outstanding_tickets)

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Ticket counts that persist across restarts; see :attr:`CurriculumSession.counts`."""
        return self._session.ticket_counts

    @property
    def is_evolving(self) -> bool:
        """True while a round is running or waiting for a retry."""
        return self._round is not None

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics, with ticket counts such as ``tickets_out``."""
        with self._lock:
            self._kept.check_sound()
            counts = {
                f"tickets_{name}": float(n) for name, n in self._session.ticket_counts.items()
            }
            out = float(len(self._session.outstanding_tickets))
            rounds = {"round_under_way": float(self.is_evolving)}
            return {**self._session.metrics(), **counts, "tickets_out": out, **rounds}

    def seed_of(self, ticket: Ticket) -> int:
        """Return a ticket's env seed; see :meth:`TaskSession.seed_of`."""
        return self._session.seed_of(ticket)

    def execute(self, call: SessionCall[AnswerT], *, mine: bool = False) -> AnswerT:
        """Execute a call; its answer is on disk when this returns.

        Rounds run by themselves in a thread of their own, so ``Evolve`` does nothing here.

        Args:
            call: the call.
            mine: True if the episode of a taken ticket runs in this process. If the process ends,
                the episode is lost, and the ticket is given back as soon as the journal is opened
                again.
        """
        answer: Any
        match call:
            case Take():
                answer = self._take_ticket(call, mine=mine)
            case Report():
                answer = self._report_episode(call)
            case GiveBack():
                own = GiveBack(self._remove_epoch(call.ticket), call.reason, call.lost)
                with self._lock:
                    out = self._find_ticket(own.ticket) is not None
                    answer = self._execute(own, changes=lambda _: out)
            case Renew():
                with self._lock:
                    answer = self._execute(
                        replace(call, ticket=self._remove_epoch(call.ticket)), changes=bool
                    )
            case Sweep():
                with self._lock:
                    answer = self._execute(call, changes=lambda _: False)
            case CloseSpentStep():
                with self._lock:
                    answer = self._execute(call, changes=bool)
            case Evolve():
                answer = None
            case _:
                raise TypeError(f"A session has no call {type(call).__name__}.")
        return cast("AnswerT", answer)

    def how_ended(self, ticket_id: str) -> str:
        """Return how a ticket ended; see :meth:`CurriculumSession.how_ended`.

        ``"reported"`` means that its episode counts, once, however often it was reported; ``"given
        back"`` or ``"lapsed"`` that a report came too late.
        """
        return self._session.how_ended(self._remove_epoch(ticket_id))

    def _take_ticket(self, call: Take, *, mine: bool) -> Ticket | Later:
        with self._lock:
            n_taken = self.ticket_counts["taken"]  # a retried call takes no new ticket
            try:
                answer = self._execute(
                    call,
                    mine=mine,
                    changes=lambda _: self.ticket_counts["taken"] > n_taken,
                    # Within a step, a take can only fail after it has started to close that step.
                    mark=lambda: object() if self._session.is_step_open else None,
                )
            except ConfigError:
                if self._round is None:
                    raise
                return Later(self._waiting_reason())
            return self._add_epoch(answer) if isinstance(answer, Ticket) else answer

    def _report_episode(self, call: Report) -> Group | None:
        id, episode = self._remove_epoch(call.ticket), call.trajectory
        body: dict[str, Any] = {}
        ticket = self._find_ticket(id)
        if ticket is not None:  # otherwise the report is dropped without reading it
            body = episode if isinstance(episode, dict) else trajectory_to_json(episode)
            episode = to_trajectory(body)  # in the form in which a restart reads it
            check_episode_recordable(episode, body, ticket.task)
        with self._lock:
            return self._execute(
                Report(id, episode),
                body={"ticket": id, "trajectory": body},
                mark=lambda: self._find_ticket(id),  # the ticket is removed first
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state for a checkpoint. Issued tickets are invalid in this state."""
        with self._lock:
            self._kept.check_sound()
            return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`, invalidating all issued tickets.

        The state is loaded into a new session, which replaces the current session once it is on
        disk.

        Raises:
            ConfigError: if this is not a session's state, or it has different sizes.
                The current session then continues unchanged.
        """
        with self._lock:
            self._kept.load_state(state)
            self._round = self._result = self._collected = None
            self._start_due_round()

    def close(self) -> None:
        """Write a snapshot and close the journal. Only ``close`` may be called afterwards."""
        self._stop.set()
        with self._lock:
            self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _execute(self, call: SessionCall[AnswerT], **keywords: Any) -> AnswerT:
        """Execute a call (see :meth:`Recorded.execute`), then start a round if one is due."""
        record = self._kept
        record.now = max(record.now, self._base + self._monotonic())
        try:
            return record.execute(call, **keywords)
        finally:
            self._start_due_round()

    # Ticket names: tickets from before a load must not be confused with later ones.

    def _add_epoch_to_id(self, id: str) -> str:
        return f"{id}@{self._kept.epoch}"

    def _add_epoch(self, ticket: Ticket) -> Ticket:
        return replace(ticket, id=self._add_epoch_to_id(ticket.id))

    def _remove_epoch(self, ticket_id: str) -> str:
        """Remove the ``@`` suffix from a ticket id. Tickets of another epoch get an unknown id."""
        id, _, epoch = ticket_id.rpartition("@")
        return id if epoch == self._kept.epoch else f"{id}@{epoch or 'nowhere'}"

    def _find_ticket(self, id: str) -> Ticket | None:
        return next(
            (ticket for ticket in self._session.outstanding_tickets if ticket.id == id), None
        )

    # Rounds.

    def _waiting_reason(self) -> str:
        if self._failures:
            return (
                f"A round that looks for tasks has failed {self._failures} times and is being "
                f"retried: {self._why_failed}"
            )
        return "An evolution round that looks for tasks is still running."

    def collect_round(self, request: str) -> RoundResult | Later | None:
        """Return the result of the latest round, which each round gives to one caller.

        Args:
            request: unique name for this call. Repeating the latest call returns the same result.

        Returns:
            The result; the reason why it is not available yet, if a round is running; or None if
            there is neither.
        """
        with self._lock:
            self._kept.check_sound()
            if self._collected is not None and self._collected[0] == request:
                return self._collected[1]
            if self._result is not None:
                result, self._result = self._result, None
                self._collected = request, result
                return result
            return None if self._round is None else Later(self._waiting_reason())

    def _start_due_round(self) -> None:
        """Run a round in a separate thread if one is due."""
        if self._round is not None or self._stop.is_set() or self._kept.broken is not None:
            return
        with self._kept.break_on_error("plan"):
            self._round = due = self._session.plan()
        if due is not None:
            threading.Thread(
                target=self._run_round,
                args=(due, self._kept.epoch),
                name=f"coevo-{due.id}",
                daemon=True,
            ).start()

    def _run_round(self, round: Round, epoch: str) -> None:
        """Run a round and apply its result. Retry after errors while the round is still needed."""
        pause = 1.0
        while not self._stop.is_set() and self._kept.broken is None and epoch == self._kept.epoch:
            try:
                self._apply_result(self._evolver.run(round), epoch)
                return
            except Exception as error:  # reported to clients, and retried
                self._failures, self._why_failed = self._failures + 1, str(error)
                logger.exception("round failed round=%s pause_s=%.0f", round.id, pause)
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _apply_result(self, result: RoundResult, epoch: str) -> None:
        with self._lock:
            if self._stop.is_set() or self._kept.broken is not None or epoch != self._kept.epoch:
                return  # due again when the journal is opened, or cancelled by a load
            for task in result.accepted:
                require_trainable_with_goal(task, "add to the pool")
            self._execute(Evolve(result))
            logger.info("round applied round=%s accepted=%d", result.round_id, len(result.accepted))
            self._failures, self._round, self._result = 0, None, result
            self._start_due_round()
