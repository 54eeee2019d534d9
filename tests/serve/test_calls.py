"""Calls as messages: one `execute` for sessions, journals, routes and proxies."""

from __future__ import annotations

import json
import shutil
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session import session_calls as calls
from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.curricula.session.remote_session import RemoteSession
from coevo_gym.curricula.session.session_calls import (
    CALLS,
    CloseSpentStep,
    Evolve,
    GiveBack,
    Renew,
    Report,
    SessionCall,
    Sweep,
    Take,
    TaskSession,
    call_from_json,
    call_name,
    call_to_json,
)
from coevo_gym.remote import TicketClient
from coevo_gym.serve.envs import LocalSession
from coevo_gym.serve.journaled_session import JournaledSession
from coevo_gym.serve.ray_actor import RaySession
from coevo_gym.serve.tickets import GiveBackLost, TakeByName
from coevo_gym.trainers.adapters.owner import OwnedSession, Owner
from tests.curricula.episodes import TRAIN, trajectory
from tests.serve.standing import Clock, open_session
from tests.serve.test_journaled_session import killed

GOLDEN = Path(__file__).parents[1] / "golden" / "journal"
"""A journal with every kind of call, and the state it leads to, before calls were messages."""

NAMES = st.text(min_size=1, max_size=200)
MESSAGES = st.one_of(
    st.builds(Take, st.integers(0, 2**40), st.none() | NAMES, st.none() | NAMES),
    st.builds(Report, NAMES, st.just(trajectory(TRAIN[0], 1.0))),
    st.builds(GiveBack, NAMES, st.sampled_from(EndReason), st.booleans()),
    st.builds(Renew, NAMES),
    st.builds(Evolve, st.just(RoundResult(round_id="round-0", accepted=TRAIN[:2]))),
    st.just(Sweep()),
    st.just(CloseSpentStep()),
)


@given(MESSAGES)
def test_a_message_survives_a_json_round_trip(call: SessionCall[Any]) -> None:
    body = json.loads(json.dumps(call_to_json(call)))
    loaded = call_from_json(call_name(call), body)
    assert type(loaded) is type(call)
    assert call_to_json(loaded) == body


def test_every_message_has_one_name() -> None:
    messages = {m for m in vars(calls).values() if isinstance(m, type)} & set(
        SessionCall.__subclasses__()
    )
    assert set(CALLS.values()) == messages
    assert call_name(TakeByName(request="a")) == "take"
    assert call_name(GiveBackLost(ticket="a")) == "give_back"


@pytest.mark.parametrize("name", CALLS)
def test_unknown_fields_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="polcy_version"):
        call_from_json(name, {"polcy_version": 3})


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (TakeByName, {"request": "a", "polcy_version": 3}),
        (TakeByName, {"request": "a", "policy_version": -1}),
        (TakeByName, {"request": "a", "slot": "x" * 201}),
        (TakeByName, {}),
        (Report, {"ticket": "a", "trajectory": "b"}),
        (GiveBackLost, {"ticket": "a", "reason": "solved"}),
        (GiveBackLost, {"ticket": "a", "lost": "maybe"}),
        (Renew, {"ticket": ""}),
    ],
    ids=[
        "unknown field",
        "negative version",
        "long slot",
        "no request",
        "trajectory as text",
        "unknown reason",
        "lost",
        "empty ticket",
    ],
)
def test_an_invalid_message_from_a_client_is_refused(
    message: type[Any], body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(message).validate_json(json.dumps(body))


def test_a_local_call_that_a_client_could_not_send_is_replayed(tmp_path: Path) -> None:
    first = open_session(tmp_path / "a.db")
    ticket = first.take(policy_version=-1, slot="x" * 300, request="")
    killed(first)
    with open_session(tmp_path / "a.db") as second:
        assert second.outstanding_tickets == (ticket,)


def test_a_message_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Take().policy_version = 3  # type: ignore[misc]


def test_a_session_refuses_an_unknown_call(tmp_path: Path) -> None:
    class Unknown(SessionCall[None]):
        pass

    with (
        open_session(tmp_path / "a.db") as session,
        pytest.raises(TypeError, match="no call Unknown"),
    ):
        session.execute(Unknown())


@pytest.mark.parametrize(
    "session",
    [JournaledSession, LocalSession, HTTPSession, RemoteSession, RaySession, OwnedSession],
)
def test_proxies_implement_only_apply(session: type[TaskSession]) -> None:
    spelled = CALLS.keys() & vars(session).keys()
    assert not spelled
    applies = RemoteSession if issubclass(session, RemoteSession) else session
    assert "execute" in vars(applies)


def test_a_remote_session_forwards_all_calls_and_properties(tmp_path: Path) -> None:
    with open_session(tmp_path / "a.db") as session:
        remote = OwnedSession(Owner(session, lambda: 0))
        ticket = remote.take()
        assert isinstance(ticket, Ticket)
        assert (remote.outstanding_tickets, remote.ticket_counts) == (
            session.outstanding_tickets,
            session.ticket_counts,
        )
        assert remote.outstanding_tickets == (ticket,)
        assert remote.seed_of(ticket) == session.seed_of(ticket)
        assert (remote.lease_s, remote.is_evolving) == (session.lease_s, session.is_evolving)
        assert remote.metrics() == session.metrics()
        assert remote.state_dict() == session.state_dict()
        assert remote.renew(ticket.id)
        remote.give_back(ticket.id, EndReason.ABANDONED)
        assert not remote.outstanding_tickets


def test_the_standalone_client_sends_complete_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: dict[str, dict[str, Any]] = {}

    def send(_: TicketClient, name: str, data: bytes) -> tuple[int, dict[str, Any]]:
        bodies[name] = json.loads(data)
        return 200, {"ticket": {}, "ended": "", "out": True}

    monkeypatch.setattr(TicketClient, "_send", send)
    client = TicketClient("http://127.0.0.1:1")
    client.take(policy_version=3, slot="row")
    client.report("a", {"task_id": "b"})
    client.give_back("a", "worker_lost")
    client.renew("a")
    for name, body in bodies.items():
        message = call_from_json(name, body)
        required = {field.name for field in fields(message)} - {"lost"}
        assert body.keys() == required, name


def test_a_journal_of_an_older_version_opens(tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / "session.json").read_text())
    path = tmp_path / "session.db"
    shutil.copy(GOLDEN / "session.db", path)
    with open_session(path, tasks=(), monotonic=Clock()) as session:
        counts = dict(expected["counts"])
        # The ticket that its own process had taken is given back when the journal opens.
        assert expected["outstanding"] == ["group-0/0#1"]
        assert session.ticket_counts == {**counts, "given_back": counts["given_back"] + 1}
        assert not session.outstanding_tickets
        assert session.metrics()["pool_size"] == 4
        assert session.state_dict()["curriculum"] == expected["state"]["curriculum"]
        ticket = session.take()
        assert isinstance(ticket, Ticket)
        assert ticket.group_id == "group-0"
