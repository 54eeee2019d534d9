"""Whatever workers, networks and processes do: no episode is lost or doubled, no group mixed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coevo_gym.core.evolution import Signal
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.methods.coevolve import CoEvolve
from coevo_gym.serve import session as sessions
from coevo_gym.serve.session import JournaledSession
from tests.curricula.episodes import TRAIN, trajectory
from tests.serve.standing import CONFIG, Clock, FindsTasks
from tests.serve.test_journaled_session import killed

LEASE_S = 10.0
DROPPED = {"given back": "late", "lapsed": "late", "reported": "double", "": "unknown"}


class Witness(CoEvolve):
    """A curriculum that keeps the groups it is told of."""

    def __init__(self) -> None:
        super().__init__(CONFIG, TRAIN[:6])
        self.told: list[Group] = []

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        self.told += groups
        return super().record(groups)


class Faults(RuleBasedStateMachine):
    """A session that is kept, among unreliable workers, in a process that may be killed.

    Attributes:
        out: tickets that are out, and when their lease ends.
        ended: how tickets ended.
        acked: numbers of the episodes whose reports were acknowledged.
        requests: what a take was answered.
        seen: all tickets ever.
    """

    @initialize(k=st.integers(1, 3), groups_per_step=st.sampled_from([1, 3]), small=st.booleans())
    def begin(self, k: int, groups_per_step: int, small: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="coevo-journal-"))
        self.k, self.groups_per_step = k, groups_per_step
        self.snapshot_bytes = 1 if small else sessions.SNAPSHOT_BYTES
        self.clock, self.n = Clock(), 0
        self.out: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.acked: set[int] = set()
        self.requests: dict[str, Ticket] = {}
        self.owners: dict[str, str | None] = {}
        self.seen: list[Ticket] = []
        self.dropped = dict.fromkeys(("double", "late", "unknown"), 0)
        self.kept: list[Group] = []
        self.open()

    def open(self) -> None:
        """The session as a new process has it."""
        self.curriculum = Witness()
        self.session = JournaledSession(
            self.curriculum,
            FindsTasks(),
            self.folder / "a.db",
            group_size=self.k,
            groups_per_step=self.groups_per_step,
            max_reissues=1,
            lease_s=LEASE_S,
            monotonic=self.clock,
        )
        self.curriculum.told.clear()  # what was played again was told before

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """A call; what has lapsed by now lapses first, and snapshots may be made often."""
        before, sessions.SNAPSHOT_BYTES = sessions.SNAPSHOT_BYTES, self.snapshot_bytes
        for id, until in list(self.out.items()):
            if until <= self.clock.now:
                self.end(id, "lapsed")
        try:
            return getattr(self.session, name)(*arguments, **named)
        finally:
            sessions.SNAPSHOT_BYTES = before

    def end(self, id: str, how: str) -> None:
        del self.out[id]
        self.ended[id] = how

    @rule(
        version=st.integers(0, 3), slot=st.sampled_from([None, None, "a", "b"]), n=st.integers(1, 4)
    )
    def take(self, version: int, slot: str | None, n: int) -> None:
        for _ in range(n):
            self.n += 1
            request = f"take-{self.n}"
            found = self.call("take", policy_version=version, slot=slot, request=request)
            assert not isinstance(found, Later)
            assert found.id not in self.out.keys() | self.ended.keys()
            assert self.owners.setdefault(found.group_id, slot) == slot
            self.out[found.id] = self.clock.now + LEASE_S
            self.requests[request] = found
            self.seen.append(found)

    @precondition(lambda self: self.requests)
    @rule(choice=st.integers(0, 99))
    def an_answer_was_lost(self, choice: int) -> None:
        """The worker asks again, by the same name."""
        request = list(self.requests)[-1 - choice % len(self.requests)]
        ticket = self.requests[request]
        self.call("take_in_lapsed")
        if ticket.id in self.out:
            assert self.call("take", request=request) == ticket

    @precondition(lambda self: self.seen)
    @rule(choice=st.integers(0, 99), outcome=st.sampled_from([0.0, 1.0]), times=st.integers(1, 3))
    def report(self, choice: int, outcome: float, times: int) -> None:
        """In time, late, or again and again, because answers are lost."""
        ticket = self.seen[-1 - choice % len(self.seen)]
        self.n += 1
        fields = {"policy_version": ticket.policy_version, "report": {"n": self.n}}
        body = json.loads(
            json.dumps(trajectory_to_json(trajectory(ticket.task, outcome, **fields)))
        )
        self.call("take_in_lapsed")
        for _ in range(times):
            how = self.ended.get(ticket.id)
            found = self.call("report", ticket.id, body)
            if how is None:
                self.end(ticket.id, "reported")
                self.acked.add(self.n)
            else:
                self.dropped[DROPPED[how]] += 1
            assert found == self.ended[ticket.id]

    @rule(outcome=st.sampled_from([0.0, 1.0]))
    def report_nobody(self, outcome: float) -> None:
        assert self.call("report", "group-0/0@000000", {"task_id": 3}) == ""
        self.dropped["unknown"] += 1

    @precondition(lambda self: self.seen)
    @rule(choice=st.integers(0, 99))
    def give_back(self, choice: int) -> None:
        ticket = self.seen[-1 - choice % len(self.seen)]
        self.call("give_back", ticket.id, EndReason.WORKER_LOST)
        if ticket.id in self.out:
            self.end(ticket.id, "given back")

    @precondition(lambda self: self.seen)
    @rule(choice=st.integers(0, 99))
    def renew(self, choice: int) -> None:
        ticket = self.seen[-1 - choice % len(self.seen)]
        assert self.call("renew", ticket.id) == (ticket.id in self.out)
        if ticket.id in self.out:
            self.out[ticket.id] = self.clock.now + LEASE_S

    @rule(seconds=st.sampled_from([3.0, 6.0, LEASE_S]))
    def workers_die_unheard(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(softly=st.booleans(), away=st.sampled_from([0.0, 1e6]))
    def the_server_is_killed(self, softly: bool, away: float) -> None:
        """It is started again on the same file; the time in between does not count."""
        before = self.session.state_dict(), self.session.outstanding, self.session.counts
        self.kept += self.curriculum.told
        if softly:
            self.session.close()
        else:
            killed(self.session)
        base = self.session._base
        self.clock.now += away
        self.open()
        assert (self.session.state_dict(), self.session.outstanding, self.session.counts) == before
        # Time goes on from the last call that is kept.
        self.out = {id: until + base - self.session._base for id, until in self.out.items()}

    @invariant()
    def tickets_out_are_those_that_were_given_out(self) -> None:
        if hasattr(self, "session"):
            assert {ticket.id for ticket in self.session.outstanding} == set(self.out)

    @invariant()
    def every_acknowledged_report_is_kept_once(self) -> None:
        if not hasattr(self, "session"):
            return
        recorded = self.kept + self.curriculum.told
        assert len({group.id for group in recorded}) == len(recorded)
        for group in recorded:
            for episode in group.trajectories:
                assert (episode.task_id, episode.group_id) == (group.task.id, group.id)
        kept = [t.report["n"] for group in recorded for t in group.trajectories]
        for waiting in self.session.state_dict()["ledger"]["groups"]:
            arrived = [place["trajectory"] for place in waiting["places"] if place["trajectory"]]
            kept += [t["report"]["n"] for t in arrived]
        assert sorted(kept) == sorted(self.acked)

    @invariant()
    def what_is_dropped_is_counted(self) -> None:
        if hasattr(self, "session"):
            assert {name: self.session.counts[name] for name in self.dropped} == self.dropped

    def teardown(self) -> None:
        """All that is out can still be run; then no lease is left."""
        if not hasattr(self, "session"):
            return
        for ticket in self.session.outstanding:
            self.session.report(ticket.id, trajectory(ticket.task))
        assert not self.session.outstanding
        self.session.close()
        shutil.rmtree(self.folder)


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=25, stateful_step_count=30)
