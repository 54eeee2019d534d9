"""A curriculum being practised: who runs what, what came back, and how the task set evolves.

    ticket = session.take()                    # a task to run, and where its episode belongs
    session.report(ticket.id, trajectory)      # what happened; the K-th one closes the group
    session.evolve()                           # a round of evolution, if one is due

It knows no env, no agent and no network: loops, samplers and servers are faces of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import ClosedStep, Curriculum, Evolver, Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.session.callers import Callers
from coevo_gym.curricula.session.groups import GroupLedger
from coevo_gym.curricula.session.leases import Clock
from coevo_gym.curricula.session.recent import Recent
from coevo_gym.curricula.session.rounds import Rounds
from coevo_gym.curricula.session.seeds import Seeds
from coevo_gym.envs.checks import is_positive_int

logger = logging.getLogger(__name__)


class CurriculumSession:
    """Hands out a curriculum's tasks as tickets, takes their episodes in, and runs its rounds.

    It may be called from any thread, and every call may be repeated. Only one thread at a time
    calls the curriculum. A round runs beside all else, while tickets are taken and reported.

    **Groups.** Each task is given out ``group_size`` times; the group closes with its last episode.
    ``take(slot=…)`` is for trainers that send the K copies of a row by themselves, anywhere and in
    any order: copies that name the same slot share a task, K of them, and the next K another.

    **Steps.** What a learner learns from at once is judged at once: :meth:`open_step` draws its
    tasks, :meth:`close_step` records its groups as one batch. With ``groups_per_step`` steps open
    and close by themselves. Without either, each group is recorded as it closes.

    **Leases.** With ``lease_s``, a ticket that is neither reported nor renewed in time is given
    back, and somebody else runs its episode; a later report is dropped. One process needs none.

    Args:
        curriculum: decides what to practise.
        evolver: carries out its rounds; None where none are run.
        group_size: K, episodes a group.
        groups_per_step: groups of a step that opens and closes by itself; 1 for none.
        seed: seed of the whole stream, or one for each part of it.
        max_reissues: how often one place of a group is tried again before the group is broken.
        max_staleness: most versions of the policy that the episodes of a group may be apart, or
            behind, and still be judged against each other and learned from.
        lease_s: seconds that a ticket may be out without a word; None for ever.
        clock: tells the time in seconds, such as ``time.monotonic``; needed for leases.

    Raises:
        ConfigError: if an argument is not usable.

    Example:
        >>> from coevo_gym import tasks
        >>> from coevo_gym.methods.coevolve import CoEvolve
        >>> curriculum = CoEvolve(tasks=tasks("webshop", "train")[:9])
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
            raise ConfigError(
                f"groups_per_step must be a positive int, actual: {groups_per_step!r}"
            )
        self._seeds = seeds = seed if isinstance(seed, Seeds) else Seeds.of(seed)
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

    @property
    def evolver(self) -> Evolver | None:
        """What carries out rounds."""
        return self._rounds.evolver

    @property
    def group_size(self) -> int:
        """K, episodes a group."""
        return self._ledger.group_size

    @property
    def max_staleness(self) -> int:
        """Versions of the policy that a group may span and still be learned from."""
        return self._ledger.max_staleness

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor given back, oldest first."""
        with self._lock:
            return self._ledger.outstanding

    @property
    def n_ready(self) -> int:
        """Tickets that can be taken, without a slot, before the curriculum is asked for a task."""
        with self._lock:
            return self._ledger.n_ready

    @property
    def n_open(self) -> int:
        """Groups that are drawn and not recorded yet."""
        with self._lock:
            return self._ledger.n_open

    @property
    def in_step(self) -> bool:
        """Whether a learner's step is open."""
        return self._ledger.in_step

    @property
    def evolving(self) -> bool:
        """Whether a round is being run, or waits to be applied."""
        return self.round_under_way is not None

    @property
    def counts(self) -> dict[str, int]:
        """What was ``taken``, ``reported``, ``given_back`` and ``lapsed`` here; what was dropped.

        A report is dropped as ``double`` if its ticket was reported before, as ``late`` if it was
        given back or its lease ran out, as ``unknown`` if the session knows of no such ticket.
        """
        with self._lock:
            return self._callers.counts

    def ended(self, ticket_id: str) -> str:
        """How a ticket ended lately: ``"reported"``, ``"given back"`` or ``"lapsed"``.

        It is "" if the ticket is out, was never given out, or ended too long ago.
        """
        with self._lock:
            return self._callers.ended(ticket_id)

    def metrics(self) -> dict[str, float]:
        """The curriculum's numbers."""
        with self._lock:
            return self.curriculum.metrics()

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode: a function of stream, group and place alone."""
        return self._seeds.of_episode(ticket)

    # Tickets.

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """The right to run one more episode.

        Args:
            policy_version: version of the policy that is about to act.
            slot: where the copies of one row meet; None for the next place of any other group.
            request: a name that is used for one ticket. A call that is repeated with it answers the
                same, until the ticket's lease has run out.

        Returns:
            A ticket; or why there is none yet: all of the open step are out, or the pool is empty
            and a round that looks for tasks is under way.

        Raises:
            ConfigError: if the curriculum has no task to give.
            SplitLeakError: if it gives one that is not a training task.
        """
        with self._lock:
            self._take_in_lapsed()
            known = self._callers.known(request)
            if known is not None:
                return known
            try:
                if not self._ledger.can_issue(slot):
                    if self.groups_per_step > 1:
                        self._ledger.close_step()
                        self._ledger.open_step(self.groups_per_step)
                    elif self._ledger.in_step:
                        return Later(
                            "All tickets of the open step are out: open_step(n) draws more groups, "
                            "close_step() ends it."
                        )
                ticket = self._ledger.issue(policy_version=policy_version, slot=slot)
            except ConfigError:
                if self._rounds.under_way is None:
                    raise
                return Later("A round of evolution that looks for tasks is under way.")
            self._callers.begin(ticket, slot, request)
            return ticket

    def report(self, ticket_id: str, trajectory: Trajectory) -> Group | None:
        """Hand in an episode.

        Args:
            ticket_id: id of the ticket it was run for. If that was reported or given back before,
                the episode is dropped and counted.
            trajectory: what happened.

        Returns:
            The group, if this episode closes it. The curriculum has recorded it by then, or will at
            the end of the step.

        Raises:
            TaskError: if the trajectory is of another task or group, or if its end says nothing
                about the agent. The ticket stays out.
            SplitLeakError: if it is not a training trajectory.
        """
        with self._lock:
            self._take_in_lapsed()
            ticket = self._ledger.ticket(ticket_id)
            if ticket is None:
                why = self._callers.drop(ticket_id)
                logger.warning("report dropped ticket=%s: %s", ticket_id, why)
                return None
            closed = self._ledger.finish(ticket, trajectory)
            self._end(ticket_id, "reported")
            return closed

    def give_back(self, ticket_id: str, reason: EndReason, *, lost: bool = True) -> Group | None:
        """Return a ticket whose episode will not be finished; it is no failure of the agent.

        Args:
            ticket_id: id of the ticket; one that is not out any more changes nothing.
            reason: why, such as ``EndReason.WORKER_LOST`` or ``EndReason.ABANDONED``.
            lost: whether it counts as a loss; not where its episode was only called off.

        Returns:
            The group, broken, if this closes it.
        """
        with self._lock:
            self._take_in_lapsed()
            ticket = self._ledger.ticket(ticket_id)
            if ticket is None:
                return None
            closed = self._ledger.give_back(ticket, reason, lost=lost)
            self._end(ticket_id, "given back")
            return closed

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew.

        Returns:
            Whether the ticket is still out; if not, its episode need not be finished.
        """
        with self._lock:
            self._take_in_lapsed()
            out = self._ledger.ticket(ticket_id) is not None
            if out:
                self._callers.leases.begin(ticket_id)
            return out

    def take_in_lapsed(self) -> int:
        """Give back what nobody has been heard of in time, as every other call does first.

        Returns:
            How many leases have run out.
        """
        with self._lock:
            return self._take_in_lapsed()

    # Steps.

    def open_step(self, n_groups: int, *, request: str | None = None) -> None:
        """Draw the tasks of a learner's step, all at once, or more tasks for the open step.

        Args:
            n_groups: groups to begin. Their tasks are distinct as far as the curriculum's ``next``
                makes them so; a step that is extended may meet a task again.
            request: a name for this call; the latest one, repeated, draws nothing more.

        Raises:
            ConfigError: if ``n_groups`` is below 1, or the curriculum does not give that many.
            SplitLeakError: if it gives a task that is not a training task; no group is begun then.
        """
        with self._lock:
            if request is not None and request in self._opened:
                return
            self._ledger.open_step(n_groups)
            if request is not None:
                self._opened.put(request, None)

    def close_step(self, *, policy_version: int = 0, request: str | None = None) -> ClosedStep:
        """Record the groups that have closed as one batch, in the order of their numbers.

        A group that is still open closes with a later step. Where no step is open, nothing happens.

        Args:
            policy_version: version of the policy now, if it is newer than any that has acted.
            request: a name for this call; the latest one, repeated, answers the same.
        """
        with self._lock:
            self._take_in_lapsed()
            known = None if request is None else self._closed.get(request)
            if known is not None:
                return known
            closed = self._ledger.close_step(policy_version=policy_version)
            if request is not None:
                self._closed.put(request, closed)
            return closed

    def close_spent_step(self) -> None:
        """Close a step that opened by itself if no ticket of it is left, as the next take would.

        A round that is asked for between the two then knows its groups.
        """
        with self._lock:
            self._take_in_lapsed()
            if self.groups_per_step > 1 and self._ledger.spent:
                self._ledger.close_step()

    def note(self, notes: Notes) -> None:
        """Tell the curriculum what was noted about the trajectories of a step."""
        with self._lock:
            self.curriculum.note(notes)

    # Rounds.

    def plan(self) -> Round | None:
        """The round under way, or the one that is due; None if none is, or there is no evolver."""
        return self._rounds.plan()

    def run_round(self, round: Round) -> RoundResult:
        """Run a round and apply what it found; who asks for the one under way waits for it.

        Raises:
            ConfigError: if there is no evolver.
        """
        return self._rounds.run(round)

    def launch_round(self, round: Round) -> None:
        """Run a round in a thread of its own; :meth:`run_round` waits for it and applies it.

        Raises:
            ConfigError: if there is no evolver, or another round is under way.
        """
        self._rounds.launch(round)

    @property
    def round_under_way(self) -> Round | None:
        """The round that is being run, or waits to be applied."""
        with self._lock:
            return self._rounds.under_way

    def round_done(self, wait_s: float = 0.0) -> bool:
        """Whether the round under way is through, or has failed, at the latest after ``wait_s``."""
        with self._lock:
            return self._rounds.done(wait_s)

    def call_off_round(self) -> None:
        """Wait until no round is being run, and forget what was not applied: it is due again."""
        self._rounds.call_off()

    def evolve(self) -> RoundResult | None:
        """Run the round that is due, or wait for the one under way; None if there is none."""
        round = self.plan()
        return None if round is None else self.run_round(round)

    # State.

    def state_dict(self, *, tickets: bool = False) -> dict[str, Any]:
        """All that the stream depends on, as JSON. A round under way is due where it is loaded.

        Args:
            tickets: whether tickets that are out stay out there, with what is left of their leases
                and with what calls are remembered, as if nothing had happened. Otherwise they are
                void, and the first to be taken again.
        """
        with self._lock:
            state = {
                "groups_per_step": self.groups_per_step,
                "curriculum": self.curriculum.state_dict(),
                "ledger": self._ledger.state_dict(tickets=tickets),
                "rng": self._rounds.rng.bit_generator.state,
            }
            return state | ({"callers": self._callers.state_dict()} if tickets else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void, unless they are part of it.

        A round under way is waited for; what it finds is replaced with all else.

        Raises:
            ConfigError: if it is no session's state, or one with other sizes of groups or steps.
        """
        missing = {"curriculum", "ledger", "rng"} - state.keys()
        if missing:
            raise ConfigError(f"This is no state of a session: it lacks {sorted(missing)}.")
        saved = state.get("groups_per_step", 1)  # states from before there were steps
        if saved != self.groups_per_step:
            raise ConfigError(
                f"The stream was saved with groups_per_step={saved}, but this one was made with "
                f"groups_per_step={self.groups_per_step}. Use the saved number."
            )
        with self._lock:
            self._rounds.restart()
            self.curriculum.load_state_dict(state["curriculum"])
            self._ledger.load_state_dict(state["ledger"])
            self._rounds.rng.bit_generator.state = state["rng"]
            self._opened.clear()
            self._closed.clear()
            self._callers.void(self._ledger.slots)
            if "callers" in state:
                self._callers.load_state_dict(state["callers"], self._ledger.outstanding)

    # All below runs under the lock.

    def _take_in_lapsed(self) -> int:
        """Give back what nobody has been heard of in time; says how many leases have run out."""
        tickets = self._callers.leases.take_lapsed()
        for id in tickets:
            ticket = self._ledger.ticket(id)
            assert ticket is not None  # a lease ends with its ticket
            self._ledger.give_back(ticket, EndReason.WORKER_LOST)
            self._end(id, "lapsed")
        slots = self._callers.slots.take_lapsed()
        for slot in slots:
            self._ledger.release(slot)
            self._close_if_done()
        return len(tickets) + len(slots)

    def _end(self, ticket_id: str, how: str) -> None:
        self._callers.end(ticket_id, how)
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close a step that opened by itself when nothing of it is left to run."""
        if self.groups_per_step > 1 and self._ledger.all_over:
            self._ledger.close_step()
