"""A curriculum session with a journal of all its calls.

Each call is executed, recorded and answered, in that order. All changes of the session are made in
:meth:`Recorded._apply`, both live and during replay.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

from coevo_gym.core.errors import CoevoError, ConfigError, StoreError
from coevo_gym.core.seams import Ticket
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.session_calls import (
    CALLS,
    AnswerT,
    SessionCall,
    call_from_json,
    call_name,
    call_to_json,
)
from coevo_gym.serve.journal import Journal, JournalCall

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES = 16 * 2**20
"""Minimum size of the journal's calls, in bytes, before a snapshot replaces them."""
_UNSYNCED = frozenset({"take", "renew", "sweep"})
"""Calls that a power failure may undo; an unknown ticket is then issued again."""
_RESTART = "Restart the server to continue from its journal; everything it acknowledged is kept."


class Recorded:
    """A session that journals each call before responding to it; not thread-safe.

    A call is either rejected before it changes anything, or executed and recorded. After anything
    else, such as an exception in the curriculum or a full disk, the session in memory may differ
    from its journal. The session is then broken, and every later call raises an error.

    Args:
        make: function that creates a session with a new curriculum, given a clock.
        journal: journal that stores the calls.
        recover: if a call cannot be replayed, continue from the state before it.

    Attributes:
        session: the session.
        epoch: a name that changes whenever a state is loaded.
        mine: tickets whose episodes run in this process.
        now: time of the current call, in seconds.
        broken: error that stopped the session; None while it works.
        recovered: description of what recovery dropped and where the copy is; "" if nothing.

    Raises:
        StoreError: if the journal is damaged or has a call that cannot be replayed.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], float]], CurriculumSession],
        journal: Journal,
        *,
        recover: bool = False,
    ) -> None:
        self._new: Callable[[], CurriculumSession] = lambda: make(lambda: self.now)
        self._journal = journal
        self._snapshot_bytes = 0
        self.session = self._new()
        self.epoch = secrets.token_hex(3)
        self.mine: set[str] = set()
        self.now = 0.0
        self.broken: StoreError | None = None
        self.recovered = ""
        snapshot = journal.read_snapshot()
        if snapshot is None:
            self.session.plan()
            self._take_snapshot()
        else:
            self._replay(*snapshot, recover=recover)

    def execute(
        self,
        call: SessionCall[AnswerT],
        *,
        body: Mapping[str, Any] | None = None,
        mine: bool = False,
        changes: Callable[[AnswerT], bool] = lambda _: True,
        mark: Callable[[], object] = object,
    ) -> AnswerT:
        """Execute a call, append it to the journal on disk, and return the call's result.

        Args:
            call: the call.
            body: the call's fields as JSON, if the caller has them already.
            mine: True if the episode of a taken ticket runs in this process.
            changes: function that returns True if a call with the given answer has changed
                anything and must be stored.
            mark: function whose value differs once the call has changed anything. A
                :class:`CoevoError` that leaves the value unchanged is a rejection. By default, no
                error is a rejection.

        Raises:
            CoevoError: if the call is rejected.
            StoreError: if the call failed in any other way, which breaks the session.
        """
        self.check_sound()
        name = call_name(call)
        calls: list[JournalCall] = []
        answer, refusal = None, None
        with self.break_on_error(name):
            if self.session.sweep():
                calls.append(JournalCall(self.now, "sweep", {}))
                self.session.plan()
            before = mark()
            try:
                answer = self._apply(call, mine=mine)
            except CoevoError as error:
                if mark() != before:
                    raise
                refusal = error
            else:
                self.session.plan()  # the order of random draws is part of what is replayed
                if changes(answer):
                    body = call_to_json(call) if body is None else body
                    if isinstance(answer, Ticket):
                        body = {**body, "mine": mine, "ticket": answer.id, "task": answer.task.id}
                    calls.append(JournalCall(self.now, name, body))
            self._write_calls(calls)
        if refusal is not None:
            raise refusal
        return cast("AnswerT", answer)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Write a state to disk, then replace the session with a new session in that state.

        Raises:
            ConfigError: if this is not a session's state; the session is then unchanged.
            StoreError: if the state cannot be written, which breaks the session.
        """
        self.check_sound()
        try:
            if "callers" in state or "out" in state.get("ledger", ()):
                raise ConfigError(
                    "the state has outstanding tickets; use a state returned by save()"
                )
            session, snapshot = self._load_session(state)
        except Exception as error:  # any effect is on a session that is discarded
            raise ConfigError(
                f"This state cannot be loaded: {_format_error(error)}. The session continues "
                "without it."
            ) from error
        with self.break_on_error("load"):
            self._replace_session(session, snapshot)

    def close(self) -> None:
        """Write a snapshot unless the session is broken, then close the journal."""
        try:
            if self.broken is None:
                with self.break_on_error("close"):
                    self._take_snapshot()
                self.broken = StoreError("The session has been closed.")
        finally:
            self._journal.close()

    def check_sound(self) -> None:
        """Raise an error if the session is broken.

        Raises:
            StoreError: if the session is broken.
        """
        if self.broken is not None:
            raise StoreError(f"This session has stopped. {self.broken} {_RESTART}") from self.broken

    @contextmanager
    def break_on_error(self, what: str) -> Iterator[None]:
        """Mark the session as broken if an exception occurs, because its journal may lack a call.

        Raises:
            StoreError: for any exception.
        """
        try:
            yield
        except StoreError as error:
            self.broken = error
            raise
        except BaseException as error:
            self.broken = StoreError(f"The call {what!r} was not recorded: {_format_error(error)}.")
            if not isinstance(error, Exception):
                raise
            logger.exception("session broken call=%s", what)
            raise StoreError(f"{self.broken} {_RESTART}") from error

    def _apply(self, call: SessionCall[AnswerT], *, mine: bool) -> AnswerT:
        """Apply a call to the session; replaying the same calls recreates the same session."""
        answer = self.session.execute(call)
        if mine and isinstance(answer, Ticket):
            self.mine.add(answer.id)
        return answer

    # Opening a journal.

    def _replay(self, at: float, state: dict[str, Any], *, recover: bool) -> None:
        """Restore a snapshot and replay the calls that followed it.

        Raises:
            StoreError: if a call cannot be replayed, and ``recover`` is not set.
        """
        done, problem = self._load_and_replay(at, state)
        if problem is None:
            return
        call, path = done + 1, self._journal.path
        n_calls, n_reports = self._journal.n_calls - done, self._journal.count_calls("report", call)
        lost = f"the last {n_calls} calls ({n_reports} reports)"
        failed = f"call {call} of {self._journal.n_calls} failed, {problem}"
        if not recover:
            raise StoreError(
                f"{path} cannot be replayed: {failed}. The file was not changed. Open it with the "
                "version of coevo_gym that wrote it, or add --recover to continue from the state "
                f"before that call: this drops {lost} and keeps a copy of the file."
            )
        self.session = self._new()
        self._load_and_replay(at, state, done)
        session, snapshot = self._load_session(self.session.state_dict())
        copy = self._journal.copy()
        self._replace_session(session, snapshot)
        self.recovered = f"{path}: {failed}. Dropped {lost}; the whole journal is in {copy}."
        logger.warning(self.recovered)

    def _load_and_replay(
        self, at: float, state: Mapping[str, Any], n_calls: int | None = None
    ) -> tuple[int, str | None]:
        """Load a snapshot into a new session and replay the calls that followed the snapshot.

        Args:
            at: time of the snapshot.
            state: state in the snapshot.
            n_calls: number of calls to replay; None for all.

        Returns:
            The number of replayed calls, and the reason why the next one failed.

        Raises:
            StoreError: if the snapshot itself cannot be loaded.
        """
        self.now = at
        try:
            self.session.load_state_dict(state["session"])
            self.mine, self.epoch = set(state["mine"]), state["epoch"]
            self.session.plan()
        except Exception as error:
            raise StoreError(
                f"The snapshot in {self._journal.path} cannot be loaded: {_format_error(error)}. "
                "Open it with the version of coevo_gym that wrote it, or pass another --db."
            ) from error
        done, doing = 0, "it could not be read"
        try:
            for call in islice(self._journal.read_calls(), n_calls):
                doing = f"{call.what} {call.body.get('ticket', '')}".strip()
                self.now = call.at
                answer = self._apply(_parse_call(call), mine=call.body.get("mine", False))
                self.session.plan()
                if call.what == "take":
                    _check_ticket(answer, call.body)
                done, doing = done + 1, "it could not be read"
        except Exception as error:
            return done, f"{doing}: {_format_error(error)}"
        return done, None

    def _load_session(self, state: Mapping[str, Any]) -> tuple[CurriculumSession, dict[str, Any]]:
        """Restore a saved session; return it and the state to save as its new snapshot.

        The given state is first loaded into another session, whose own state is then used.
        """
        first, second = self._new(), self._new()
        first.load_state_dict(state)
        snapshot = first.state_dict(tickets=True)
        snapshot["callers"]["counts"] = self.session.ticket_counts
        snapshot = json.loads(json.dumps(snapshot, allow_nan=False))
        second.load_state_dict(snapshot)
        second.metrics()
        second.plan()
        return second, snapshot

    def _replace_session(self, session: CurriculumSession, snapshot: dict[str, Any]) -> None:
        """Replace this session with a loaded session, and invalidate all earlier tickets."""
        epoch = secrets.token_hex(3)
        self._write_snapshot(snapshot, (), epoch)
        self.session, self.epoch, self.mine = session, epoch, set()

    # Writing it.

    def _write_calls(self, calls: list[JournalCall]) -> None:
        if not calls:
            return
        self._journal.add(calls, synced=any(call.what not in _UNSYNCED for call in calls))
        if self._journal.bytes_since_snapshot > max(SNAPSHOT_BYTES, 4 * self._snapshot_bytes):
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        self.mine &= {ticket.id for ticket in self.session.outstanding_tickets}
        self._write_snapshot(self.session.state_dict(tickets=True), self.mine, self.epoch)

    def _write_snapshot(self, session: dict[str, Any], mine: Collection[str], epoch: str) -> None:
        state = {"session": session, "mine": sorted(mine), "epoch": epoch}
        self._snapshot_bytes = self._journal.replace_calls_with_snapshot(self.now, state)


_FORMER_NAMES = {"landed": "evolve"}
"""Former names of calls, which older journals contain."""


def _parse_call(row: JournalCall) -> SessionCall[Any]:
    """Return the call recorded in a journal row.

    Raises:
        StoreError: if no call has this name.
    """
    name, body = _FORMER_NAMES.get(row.what, row.what), dict(row.body)
    if name not in CALLS:
        raise StoreError(f"the call {row.what!r} does not exist")
    if name == "take":  # the other fields of the row are the answer
        version = body["version"] if "version" in body else body["policy_version"]
        body = {"policy_version": version, "slot": body["slot"], "request": body["request"]}
    return call_from_json(name, body)


def _check_ticket(answer: object, body: Mapping[str, Any]) -> None:
    """Check that a replayed ``take`` call returned the ticket recorded in the journal."""
    mine = isinstance(answer, Ticket) and (answer.id, answer.task.id)
    if mine != (body["ticket"], body["task"]):
        raise StoreError(
            f"replaying this call did not return the recorded ticket, {body['ticket']!r}. The "
            "journal was probably written by a different version of coevo_gym"
        )


def _format_error(error: BaseException) -> str:
    """Format an error without its final full stop."""
    words = str(error).strip().removesuffix(".")
    return words if isinstance(error, CoevoError) else f"{type(error).__name__}: {words}"
