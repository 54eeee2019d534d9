"""A curriculum session that loses nothing it has acknowledged, whatever happens to its process.

    with JournaledSession(make, evolver, Path("curriculum.db"), lease_s=600) as session:
        ticket = session.take(request="worker-3/17")
        session.report(ticket.id, trajectory)      # on disk when it returns

It holds no env and no network: a server and an actor are faces of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum, Evolver, Later, Ticket
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.curricula.pool.pool import require_practised
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.serve.journal import Journal
from coevo_gym.serve.recorded import Recorded
from coevo_gym.serve.reports import check_report, read_trajectory

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0


class JournaledSession:
    """A :class:`~coevo_gym.curricula.session.session.CurriculumSession` that outlives its process.

    Each call that changes something is written to a journal, with the time it was made at, before
    it is answered. Opening the journal again replays the calls in order, which restores the
    session: tickets that are out stay out, with what was left of their leases, and a report that
    was acknowledged is neither lost nor counted again. The time in between does not count.

    A call is either refused before it changes anything, or carried out and written down. If
    anything else happens, such as an exception in the curriculum or a full disk, the session in
    memory may differ from its journal. It then answers every call with a :class:`StoreError` until
    it is opened again.

    Rounds that are due are carried out in a thread of their own; what they find is in the journal
    before it is applied. A round that fails is tried again, after growing pauses.

    Args:
        make: creates the curriculum. It is called when the journal is opened and for every state
            that is loaded, and must return a new one each time.
        evolver: carries out its rounds.
        path: the journal; created if it does not exist.
        about: what the session is made with, such as the names of benchmark and method; a journal
            is for a session that was made with the same. The numbers below are part of it.
        group_size: K, episodes a group.
        groups_per_step: groups that the trainer learns from at once.
        seed: seed of the whole stream.
        max_reissues: how often one place of a group is tried again.
        max_staleness: most versions of the policy that a group may span and still show a boundary.
        lease_s: seconds that a ticket may be out without a word.
        monotonic: tells the time in seconds, within this process.
        recover: if a call cannot be replayed, continue from the state before it. A copy of the
            whole journal is kept, and all tickets that were out are void.

    Attributes:
        recovered: what was dropped to recover, and where the copy is; "" if nothing was.

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
            "lease_s": lease_s,  # what lapsed in the journal lapses again
        }
        if max_staleness:  # journals of older versions do not name it
            made_with["max_staleness"] = max_staleness
        self._evolver = evolver
        self._lock = threading.RLock()
        self._monotonic = monotonic
        self.lease_s = lease_s

        def new(found: Evolver, clock: Callable[[], float]) -> CurriculumSession:
            return CurriculumSession(make(), found, **made_with, clock=clock)

        self._round: Round | None = None
        self._failures, self._why_failed = 0, ""
        self._stop = threading.Event()
        journal = Journal(path, {**about, **made_with})
        try:
            self._kept = Recorded(new, journal, recover=recover)
        except BaseException:
            journal.close()
            raise
        self.recovered = self._kept.recovered
        self._base = self._kept.now - monotonic()
        self.replayed = self._session.counts["taken"] > 0
        for id in list(self._kept.mine):  # those who ran them are gone
            self.give_back(self._named(id), EndReason.WORKER_LOST)
        self._begin_due()

    @property
    def _session(self) -> CurriculumSession:
        return self._kept.session

    # What a face asks for.

    @property
    def curriculum(self) -> Curriculum:
        """What decides on the tasks."""
        return self._session.curriculum

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor given back, oldest first."""
        return tuple(self._out(ticket) for ticket in self._session.outstanding)

    @property
    def counts(self) -> dict[str, int]:
        """See :attr:`CurriculumSession.counts`; they count on after a restart."""
        return self._session.counts

    @property
    def evolving(self) -> bool:
        """Whether a round is being carried out, or waits to be tried again."""
        return self._round is not None

    def metrics(self) -> dict[str, float]:
        """The curriculum's numbers; ``tickets_out``, ``tickets_taken`` and the like beside them."""
        with self._lock:
            self._kept.check_sound()
            counts = {f"tickets_{name}": float(n) for name, n in self._session.counts.items()}
            out = float(len(self._session.outstanding))
            rounds = {"round_under_way": float(self.evolving)}
            return {**self._session.metrics(), **counts, "tickets_out": out, **rounds}

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode: a function of stream, group and place alone."""
        return self._session.seed_of(ticket)

    def take(
        self,
        *,
        policy_version: int = 0,
        slot: str | None = None,
        request: str | None = None,
        mine: bool = False,
    ) -> Ticket | Later:
        """The right to run one more episode; see :meth:`CurriculumSession.take`.

        Args:
            policy_version: version of the policy that is about to act.
            slot: where the copies of one row meet.
            request: a name for this call, so that it may be repeated.
            mine: whether its episode runs in this very process: when that is gone, so is the
                episode, and the ticket is given back as soon as the journal is opened again.
        """
        body = {"version": policy_version, "slot": slot, "request": request, "mine": mine}
        with self._lock:
            taken = self.counts["taken"]  # a call that is repeated takes nothing
            try:
                found = self._do(
                    "take",
                    body,
                    changes=lambda _: self.counts["taken"] > taken,
                    # Within a step, a take only fails after it has begun to close that step.
                    mark=lambda: object() if self._session.in_step else None,
                )
            except ConfigError:
                if self._round is None:
                    raise
                return Later(self._why_later())
            return self._out(found) if isinstance(found, Ticket) else found

    def report(self, ticket_id: str, trajectory: Trajectory | dict[str, Any]) -> str:
        """Hand in an episode; see :meth:`CurriculumSession.report`.

        Args:
            ticket_id: id of the ticket it was run for.
            trajectory: what happened; or the JSON of it, as ``trajectory_to_json`` writes it.

        Returns:
            How the ticket has ended, the same however often it is reported: ``"reported"``;
            ``"given back"`` or ``"lapsed"`` where the episode came too late and is dropped; or
            "" if no such ticket is known.

        Raises:
            TaskError: if it is not a trajectory, does not fit the ticket, or could not be
                recorded with its group. The ticket stays out.
        """
        id = self._own(ticket_id)
        episode: Trajectory | None = None
        body: dict[str, Any] = {}
        ticket = self._ticket(id)
        if ticket is not None:  # otherwise it is dropped, whatever it is
            if isinstance(trajectory, Trajectory):
                trajectory = trajectory_to_json(trajectory)
            body = trajectory
            episode = read_trajectory(body)  # as a restart will read it
            check_report(episode, body, ticket.task)
        with self._lock:
            self._do(
                "report",
                {"ticket": id, "trajectory": body},
                given=episode,
                mark=lambda: self._ticket(id),  # it is taken in before anything else happens
            )
            return self._session.ended(id)

    def give_back(self, ticket_id: str, reason: EndReason) -> str:
        """Return a ticket whose episode will not be finished; says how it has ended."""
        id = self._own(ticket_id)
        with self._lock:
            out = self._ticket(id) is not None
            self._do("give_back", {"ticket": id, "reason": str(reason)}, changes=lambda _: out)
            return self._session.ended(id)

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew; False if its episode need not be finished any more."""
        with self._lock:
            return bool(self._do("renew", {"ticket": self._own(ticket_id)}, changes=bool))

    def take_in_lapsed(self) -> None:
        """Give back what nobody has been heard of in time; to be called now and then."""
        with self._lock:
            self._do("sweep", {}, changes=lambda _: False)

    def state_dict(self) -> dict[str, Any]:
        """The session's state for a trainer's checkpoint; tickets that are out are void in it."""
        with self._lock:
            self._kept.check_sound()
            return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to :meth:`state_dict`; all tickets given out before are void for ever.

        The state is loaded into a new session, which takes the place of this one when it is on
        disk.

        Raises:
            ConfigError: if it is not the state of a session, or was saved with other sizes. This
                session goes on as if nothing had happened.
        """
        with self._lock:
            self._kept.load(state)
            self._round = None
            self._begin_due()

    def close(self) -> None:
        """Write a snapshot and close the journal; twice is fine. No call may follow."""
        self._stop.set()
        with self._lock:
            self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, what: str, body: dict[str, Any], **named: Any) -> Any:
        """Carry out a call; see :meth:`Recorded.do`."""
        kept = self._kept
        kept.now = max(kept.now, self._base + self._monotonic())
        try:
            return kept.do(what, body, **named)
        finally:
            self._begin_due()

    # Names of tickets: those of before a load must not be taken for later ones.

    def _named(self, id: str) -> str:
        return f"{id}@{self._kept.epoch}"

    def _out(self, ticket: Ticket) -> Ticket:
        return replace(ticket, id=self._named(ticket.id))

    def _own(self, ticket_id: str) -> str:
        """The session's own id of a ticket; what is of another epoch stays unknown to it."""
        id, _, epoch = ticket_id.rpartition("@")
        return id if epoch == self._kept.epoch else f"{id}@{epoch or 'nowhere'}"

    def _ticket(self, id: str) -> Ticket | None:
        return next((ticket for ticket in self._session.outstanding if ticket.id == id), None)

    # Rounds.

    def _why_later(self) -> str:
        if self._failures:
            return (
                f"A round that looks for tasks has failed {self._failures} times and is tried "
                f"again: {self._why_failed}"
            )
        return "A round of evolution that looks for tasks is under way."

    def _begin_due(self) -> None:
        """Carry out the round that is due in a thread of its own, if there is one."""
        if self._round is not None or self._stop.is_set() or self._kept.broken is not None:
            return
        with self._kept.breaking("plan"):
            self._round = due = self._session.plan()
        if due is not None:
            threading.Thread(
                target=self._explore,
                args=(due, self._kept.epoch),
                name=f"coevo-{due.id}",
                daemon=True,
            ).start()

    def _explore(self, round: Round, epoch: str) -> None:
        """Carry a round out until it is applied, or is wanted no more."""
        pause = 1.0
        while not self._stop.is_set() and self._kept.broken is None and epoch == self._kept.epoch:
            try:
                self._land(self._evolver.run(round), epoch)
                return
            except Exception as error:  # told to whoever asks, and tried again
                self._failures, self._why_failed = self._failures + 1, str(error)
                logger.exception("round failed round=%s pause_s=%.0f", round.id, pause)
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _land(self, result: RoundResult, epoch: str) -> None:
        with self._lock:
            if self._stop.is_set() or self._kept.broken is not None or epoch != self._kept.epoch:
                return  # it is due again where the journal is opened, or was called off by a load
            for task in result.accepted:
                require_practised(task, "add to the pool")
            self._do("landed", {"result": result.model_dump(mode="json")})
            logger.info("round applied round=%s accepted=%d", result.round_id, len(result.accepted))
            self._failures, self._round = 0, None
            self._begin_due()
