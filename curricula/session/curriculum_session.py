"""Sessions, which issue a curriculum's tasks, record episodes and run evolution rounds.

    ticket = session.take()                    # a task to run, and the group of its episode
    session.report(ticket.id, trajectory)      # the result; the K-th one closes the group
    session.evolve()                           # a round of evolution, if one is due

A session does not depend on envs, agents or the network. Loops, samplers and servers use it.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.random import SeedSequence

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import ClosedStep, Curriculum, Evolver, Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.curricula.saved import restore_on_error
from coevo_gym.curricula.session.callers import Callers, Clock, Recent
from coevo_gym.curricula.session.groups import GroupLedger
from coevo_gym.curricula.session.rounds import Rounds
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
from coevo_gym.envs.checks import is_positive_int


class Seeds(NamedTuple):
    """Seeds for drawing tasks, planning rounds and running episodes.

    Attributes:
        draws: seed for drawing tasks.
        rounds: seed for planning rounds.
        episodes: seed for the episodes' envs.
    """

    draws: int | SeedSequence
    rounds: int | SeedSequence
    episodes: int = 0

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Derive the seeds for draws, rounds and episodes from one seed."""
        draws, rounds = SeedSequence(seed, spawn_key=(0,)), SeedSequence(seed, spawn_key=(1,))
        return cls(draws, rounds, seed)

    def episode_seed(self, ticket: Ticket) -> int:
        """Return a ticket's env seed, derived from the main seed, the group and its position."""
        return zlib.crc32(f"{self.episodes}/{ticket.group_id}/{ticket.index}".encode())


logger = logging.getLogger(__name__)


class CurriculumSession(TaskSession):
    """A session that issues a curriculum's tasks as tickets, records episodes and runs rounds.

    All methods are thread-safe, and every call may be repeated. Only one thread at a time calls the
    curriculum. Tickets can be taken and reported while a round is running.

    **Groups.** Each task is issued ``group_size`` times; the group closes with its last episode.
    ``take(slot=…)`` is for trainers that send the K copies of a row themselves, to any worker and
    in any order: K copies with the same slot share a task, and the next K copies get another task.

    **Steps.** Groups that a learner uses together are drawn and recorded together:
    :meth:`open_step` draws their tasks, and :meth:`close_step` records the groups as one batch.
    With ``groups_per_step``, steps open and close automatically. Without steps, each group is
    recorded as it closes.

    **Leases.** With ``lease_s``, a ticket that is neither reported nor renewed in time is given
    back and issued again; a later report is dropped. A single process needs no leases.

    Args:
        curriculum: chooses the tasks.
        evolver: runs rounds; None if there are no rounds to run.
        group_size: K, episodes per group.
        groups_per_step: groups per automatically opened step; 1 for no steps.
        seed: seed for the whole stream, or a seed for each part of it.
        max_reissues: maximum number of further attempts per place before its group is broken.
        max_staleness: maximum number of policy versions that a group's episodes may span or lag
            behind and still be compared with each other and learned from.
        lease_s: lease time of a ticket in seconds; None for no limit.
        clock: returns the time in seconds, such as ``time.monotonic``; required for leases.

    Raises:
        ConfigError: if an argument is invalid.

    Example:
        >>> from coevo_gym import tasks
        >>> from coevo_gym.curricula.pool_curriculum import CurriculumConfig
        >>> curriculum = CurriculumConfig().make(tasks("webshop", "train")[:9])
        >>> session = CurriculumSession(curriculum, group_size=2)
        >>> first, second = session.take(), session.take()
        >>> first.task == second.task, first.group_id == second.group_id
        (True, True)
    """

    def __init__(
        self,
        curriculum: Curriculum,
        evolver: Evolver | None = None,
        *,
        group_size: int = 8,
        groups_per_step: int = 1,
        seed: int | Seeds = 0,
        max_reissues: int = 3,
        max_staleness: int = 0,
        lease_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not is_positive_int(groups_per_step):
            raise ConfigError(f"groups_per_step must be a positive int, got {groups_per_step!r}.")
        self._seeds = seeds = seed if isinstance(seed, Seeds) else Seeds.from_seed(seed)
        self.curriculum = curriculum
        self.groups_per_step, self.lease_s = groups_per_step, lease_s
        self._lock = threading.Lock()
        self._ledger = GroupLedger(
            curriculum,
            group_size=group_size,
            seed=seeds.draws,
            max_reissues=max_reissues,
            max_staleness=max_staleness,
        )
        rng = np.random.default_rng(seeds.rounds)
        self._rounds = Rounds(curriculum, evolver, rng, self._lock)
        self._callers = Callers(lease_s, clock)
        self._opened: Recent[None] = Recent(1)
        self._closed: Recent[ClosedStep] = Recent(1)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to copy or pickle the session, because its callers share it.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled, nor can a sampler that uses it, "
            "because each copy would draw its own tasks. Save state_dict() and load it into a new "
            "session, or share the session (HTTPSession with `coevo serve`, or RaySession)."
        )

    @property
    def evolver(self) -> Evolver | None:
        """The evolver that runs the rounds, or None."""
        return self._rounds.evolver

    @property
    def group_size(self) -> int:
        """K, the number of episodes per group."""
        return self._ledger.group_size

    @property
    def max_staleness(self) -> int:
        """Maximum number of policy versions that the episodes of one group may span."""
        return self._ledger.max_staleness

    @property
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """The tickets that have been neither reported nor returned, oldest first."""
        with self._lock:
            return self._ledger.outstanding_tickets

    @property
    def n_ready_tickets(self) -> int:
        """Number of unreserved tickets that can be issued before a new task must be drawn."""
        with self._lock:
            return self._ledger.n_ready_tickets

    @property
    def n_open_groups(self) -> int:
        """Number of groups that have been drawn but not recorded."""
        with self._lock:
            return self._ledger.n_open_groups

    @property
    def is_step_open(self) -> bool:
        """True if a learner step has begun and has not ended."""
        return self._ledger.is_step_open

    @property
    def is_evolving(self) -> bool:
        """True if a round is running or waiting to be applied."""
        return self.round_under_way is not None

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Counts of tickets by event (such as ``taken``), and of dropped reports by reason.

        The events are ``taken``, ``reported``, ``given_back`` and ``lapsed``. A report is dropped
        as ``double`` if its ticket was already reported, as ``late`` if the ticket was given back
        or its lease had expired, and as ``unknown`` if the session does not know the ticket.
        """
        with self._lock:
            return self._callers.ticket_counts

    def how_ended(self, ticket_id: str) -> str:
        """Return how a recent ticket ended: ``"reported"``, ``"given back"`` or ``"lapsed"``.

        The result is "" if the ticket is outstanding, was never issued, or ended too long ago.
        """
        with self._lock:
            return self._callers.how_ended(ticket_id)

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        with self._lock:
            return self.curriculum.metrics()

    def seed_of(self, ticket: Ticket) -> int:
        """Return a ticket's env seed. It depends only on the stream, the group and the position."""
        return self._seeds.episode_seed(ticket)

    # Tickets.

    def execute(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Execute a call and return its answer; :class:`TaskSession` describes the calls."""
        answer: Any
        match call:
            case Take():
                answer = self._take(call)
            case Report():
                answer = self._report(call)
            case GiveBack():
                answer = self._give_back(call)
            case Renew():
                answer = self._renew(call)
            case Evolve():
                round = self.plan()
                answer = None if round is None else self._rounds.run(round, call.result)
            case Sweep():
                with self._lock:
                    answer = self._reclaim_lapsed()
            case CloseSpentStep():
                answer = self._close_spent_step()
            case _:
                raise TypeError(f"A session has no call {type(call).__name__}.")
        return cast("AnswerT", answer)

    def _take(self, call: Take) -> Ticket | Later:
        with self._lock:
            self._reclaim_lapsed()
            known = self._callers.find_ticket(call.request)
            if known is not None:
                return known
            try:
                if not self._ledger.can_issue_without_draw(call.slot):
                    if self.groups_per_step > 1:
                        self._ledger.close_step()
                        self._ledger.open_step(self.groups_per_step)
                    elif self._ledger.is_step_open:
                        return Later(
                            "All tickets for the open step are out: open_step(n) draws more "
                            "groups, close_step() ends the step."
                        )
                ticket = self._ledger.issue(policy_version=call.policy_version, slot=call.slot)
            except ConfigError:
                if self._rounds.current_round is None:
                    raise
                return Later("A round of evolution that looks for tasks is under way.")
            self._callers.record_taken(ticket, call.slot, call.request)
            return ticket

    def _report(self, call: Report) -> Group | None:
        with self._lock:
            self._reclaim_lapsed()
            ticket = self._ledger.find_ticket(call.ticket)
            if ticket is None:
                why = self._callers.record_dropped(call.ticket)
                logger.warning("report dropped ticket=%s: %s", call.ticket, why)
                return None
            closed = self._ledger.record_episode(ticket, to_trajectory(call.trajectory))
            self._callers.record_end(call.ticket, "reported")
            self._close_step_if_over()
            return closed

    def _give_back(self, call: GiveBack) -> Group | None:
        with self._lock:
            self._reclaim_lapsed()
            ticket = self._ledger.find_ticket(call.ticket)
            if ticket is None:
                return None
            closed = self._ledger.give_back(ticket, call.reason, lost=call.lost)
            self._callers.record_end(call.ticket, "given back")
            self._close_step_if_over()
            return closed

    def _renew(self, call: Renew) -> bool:
        with self._lock:
            self._reclaim_lapsed()
            out = self._ledger.find_ticket(call.ticket) is not None
            if out:
                self._callers.leases.begin(call.ticket)
            return out

    def _close_spent_step(self) -> bool:
        with self._lock:
            self._reclaim_lapsed()
            spent = (
                self.groups_per_step > 1
                and self._ledger.is_step_open
                and self._ledger.has_issued_all
            )
            if spent:
                self._ledger.close_step()
            return spent

    # Steps.

    def open_step(self, n_groups: int, *, request: str | None = None) -> None:
        """Open a learner step and draw its tasks. If a step is open already, add tasks to it.

        Args:
            n_groups: number of groups to start. Their tasks are distinct if the curriculum's
                ``next`` draws distinct tasks; an extended step may repeat a task.
            request: unique name for this call; repeating the latest call does not draw more tasks.

        Raises:
            ConfigError: if ``n_groups`` is below 1, or the curriculum returns the wrong number of
                tasks.
            SplitLeakError: if the curriculum returns a task that is not for training; no group
                starts.
        """
        with self._lock:
            if request is not None and request in self._opened:
                return
            self._ledger.open_step(n_groups)
            if request is not None:
                self._opened.put(request, None)

    def close_step(self, *, policy_version: int = 0, request: str | None = None) -> ClosedStep:
        """End the learner step and record its closed groups as one batch, in order.

        A group that is still open is recorded with a later step. Without an open step, nothing
        happens.

        Args:
            policy_version: the current policy version, if no episode has used it yet.
            request: unique name for this call; repeating the latest call returns its result.
        """
        with self._lock:
            self._reclaim_lapsed()
            known = None if request is None else self._closed.get(request)
            if known is not None:
                return known
            closed = self._ledger.close_step(policy_version=policy_version)
            if request is not None:
                self._closed.put(request, closed)
            return closed

    def note(self, notes: Notes) -> None:
        """Pass the notes on a step's trajectories to the curriculum."""
        with self._lock:
            self.curriculum.note(notes)

    # Rounds.

    def plan(self) -> Round | None:
        """Return the round that is running or due, or None if there is no such round."""
        return self._rounds.plan()

    def run_round(self, round: Round) -> RoundResult:
        """Run a round and apply its result; if the round is already running, wait for it.

        Raises:
            ConfigError: if there is no evolver.
        """
        return self._rounds.run(round)

    def launch_round(self, round: Round) -> None:
        """Start a round in its own thread; :meth:`run_round` waits for the round and applies it.

        Raises:
            ConfigError: if there is no evolver, or another round is running.
        """
        self._rounds.launch(round)

    @property
    def round_under_way(self) -> Round | None:
        """The round that is running or waiting to be applied, or None."""
        with self._lock:
            return self._rounds.current_round

    def wait_for_round(self, wait_s: float = 0.0) -> bool:
        """Wait up to ``wait_s`` seconds; return True once the current round finishes or fails."""
        with self._lock:
            return self._rounds.wait_until_done(wait_s)

    def discard_round(self) -> None:
        """Wait until no round is running, and discard any result that has not been applied."""
        self._rounds.discard()

    # State.

    def state_dict(self, *, tickets: bool = False) -> dict[str, Any]:
        """Return the full state of the stream as JSON.

        A round that is running becomes due again after loading.

        Args:
            tickets: True to keep outstanding tickets valid after loading, with the remaining time
                of their leases and the record of recent calls. Otherwise, the tickets become void,
                and their places are issued again first.
        """
        with self._lock:
            return self._to_state(tickets=tickets)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        Earlier tickets become void unless they are part of the state. If a round is running, the
        call waits for the round and discards its result. If the state cannot be loaded, the session
        continues in its current state, in which a discarded round is due again.

        Raises:
            ConfigError: if the state is damaged, or has other group or step sizes.
            SplitLeakError, TaskError: if the state contains a task that is not for training.
        """
        with self._lock:
            self._rounds.discard_all()
            with restore_on_error(lambda: self._to_state(tickets=True), self._load_state):
                self._check_state(state)
                self._load_state(state)
                callers = self._callers.from_state(
                    state.get("callers"),
                    self._ledger.outstanding_tickets,
                    self._ledger.slots_with_tickets,
                )
                self._to_state()  # a damaged state may fail only when it is used
                self.curriculum.metrics()
            self._callers = callers
            self._opened.clear()
            self._closed.clear()

    # The methods below run under the lock.

    def _to_state(self, *, tickets: bool = False) -> dict[str, Any]:
        state = {
            "groups_per_step": self.groups_per_step,
            "curriculum": self.curriculum.state_dict(),
            "ledger": self._ledger.state_dict(tickets=tickets),
            "rng": self._rounds.rng.bit_generator.state,
        }
        return state | ({"callers": self._callers.state_dict()} if tickets else {})

    def _check_state(self, state: Mapping[str, Any]) -> None:
        missing = {"groups_per_step", "curriculum", "ledger", "rng"} - state.keys()
        if missing:
            raise ConfigError(
                f"This is not a session state: the keys {sorted(missing)} are missing."
            )
        saved = state["groups_per_step"]
        if saved != self.groups_per_step:
            raise ConfigError(
                f"The state was saved with groups_per_step={saved}, but this session has "
                f"groups_per_step={self.groups_per_step}. Set groups_per_step={saved}."
            )

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.curriculum.load_state_dict(state["curriculum"])
        self._ledger.load_state_dict(state["ledger"])
        self._rounds.rng.bit_generator.state = state["rng"]

    def _reclaim_lapsed(self) -> int:
        """Reclaim tickets and slots with expired leases, and return how many were reclaimed."""
        tickets = self._callers.leases.take_lapsed()
        for id in tickets:
            ticket = self._ledger.find_ticket(id)
            assert ticket is not None  # a lease ends with its ticket
            self._ledger.give_back(ticket, EndReason.WORKER_LOST)
            self._callers.record_end(id, "lapsed")
        slots = self._callers.slots.take_lapsed()
        for slot in slots:
            self._ledger.cancel_slot(slot)
            self._close_step_if_over()
        return len(tickets) + len(slots)

    def _close_step_if_over(self) -> None:
        """Close an automatically opened step once all of its episodes have ended."""
        if self.groups_per_step > 1 and self._ledger.is_over:
            self._ledger.close_step()
