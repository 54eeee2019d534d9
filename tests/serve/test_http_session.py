"""A served session equals one in this process, and stays so if answers or the server are lost."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import coevo_gym
from coevo_gym import CurriculumSession, EvolvingTaskSampler, remote
from coevo_gym.core.errors import ConfigError, StoreError, TaskError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Ticket
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.curricula.pool_curriculum import CurriculumConfig, PoolCurriculum
from coevo_gym.curricula.session import http_session
from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.curricula.session.session_calls import Evolve, TaskSession, group_to_json
from coevo_gym.remote import TicketClient
from coevo_gym.serve import tickets
from coevo_gym.serve.journaled_session import JournaledSession
from coevo_gym.serve.tokens import Tokens
from tests.curricula.episodes import TRAIN, trajectory
from tests.processes import Forked
from tests.serve.standing import Clock, FindsTasks, open_session, run_server, serve_toy
from tests.serve.test_cli import COMMAND

K = 2
SIZES = ("--group-size", str(K), "--initial-size", "4")
WAIT_S = 120
TOKEN = "a secret of the server"


def make_curriculum() -> PoolCurriculum:
    growth = {"every_groups": 2}
    return CurriculumConfig(initial_size=4, growth=growth, detector={"n_min": 2}).make()


@contextmanager
def served(folder: Path, **fields: Any) -> Iterator[HTTPSession]:
    """A session over HTTP that grows every two groups."""
    session = JournaledSession(
        make_curriculum, FindsTasks(), folder / "a.db", monotonic=Clock(), **fields
    )
    with run_server(session) as server:
        yield HTTPSession(server.address)


ENDING = ["report", "report", "give_back", "cancel"]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "take", "slot", *ENDING, "renew", "sweep", "close_spent_step", "load"]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


class Caller:
    """Makes calls to a session, and keeps the tickets that it has got."""

    def __init__(self, session: TaskSession) -> None:
        self.session = session
        self.tickets: list[Ticket] = []

    def call(self, name: str, number: int) -> object:
        """Make a call, and return its answer in a form that can be compared."""
        ticket = self.tickets[number % len(self.tickets)] if self.tickets else None
        if name in ("take", "slot"):
            slot = f"row {number % 2}" if name == "slot" else None
            answer = self.session.take(policy_version=number, slot=slot)
            assert isinstance(answer, Ticket)
            self.tickets.append(answer)
            return dataclasses.replace(answer, id=bare(answer.id)), self.session.seed_of(answer)
        if name == "load":
            self.session.load_state_dict(self.session.state_dict())
            return None
        if name in ("sweep", "close_spent_step"):
            return getattr(self.session, name)()
        if ticket is None:
            return None
        if name == "renew":
            return self.session.renew(ticket.id)
        if name == "report":
            return as_json(self.session.report(ticket.id, trajectory(ticket.task, number / 5)))
        reason = (EndReason.WORKER_LOST, EndReason.CAPPED)[number % 2]
        return as_json(self.session.give_back(ticket.id, reason, lost=name == "give_back"))


def bare(id: str) -> str:
    """Remove the epoch that a journaled session adds to the id of a ticket."""
    return id.partition("@")[0]


def as_json(group: Group | None) -> object:
    return group and group_to_json(group)


def describe_state(session: TaskSession) -> dict[str, Any]:
    """Return all that a session tells about itself."""
    names = make_curriculum().metrics().keys() | {"groups"}
    return {
        "state": session.state_dict(),
        "counts": session.ticket_counts,
        "evolving": session.is_evolving,
        "out": [(bare(one.id), one.task) for one in session.outstanding_tickets],
        "metrics": {name: value for name, value in session.metrics().items() if name in names},
    }


@settings(max_examples=15)
@example([("take", 0)] * 6 + [("report", 1), ("close_spent_step", 0), ("take", 0)], 3)
@given(CALLS, st.sampled_from([1, 3]))
def test_a_served_session_answers_every_call_as_one_in_this_process(
    calls: list[tuple[str, int]], groups_per_step: int
) -> None:
    options = {"group_size": K, "groups_per_step": groups_per_step, "seed": 7}
    local = CurriculumSession(make_curriculum(), FindsTasks(), **options)  # type: ignore[arg-type]
    with (
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        served(Path(folder), lease_s=60.0, **options) as http,
    ):
        patch.setattr(tickets, "RETRY_AFTER_S", 0.01)
        callers = [Caller(local), Caller(http)]
        for name, number in [("sweep", 0), *calls]:
            answers = [(caller.call(name, number), caller.session.evolve()) for caller in callers]
            assert answers[0] == answers[1], name
        assert describe_state(local) == describe_state(http)


def test_evolve_returns_each_result_once_also_if_its_answer_is_lost(tmp_path: Path) -> None:
    results = iter([True, True, False])
    with (
        served(tmp_path, group_size=K) as http,
        lose_answers(lambda answer: answer.get("result") is not None and next(results)) as lost,
    ):
        result = http.evolve()
        assert isinstance(result, RoundResult)
        assert result.accepted == TRAIN[:4]
        assert http.evolve() is None
        assert lost == ["evolve", "evolve"]
        with pytest.raises(ConfigError, match="runs its rounds itself"):
            http.execute(Evolve(result))


@contextmanager
def lose_answers(is_lost: Callable[[dict[str, Any]], bool]) -> Iterator[list[str]]:
    """Lose some answers of a server, which has executed the calls; yield the calls' names."""
    send, lost = TicketClient._send, list[str]()

    def send_and_lose(client: TicketClient, name: str, data: bytes) -> Any:
        status, answer = send(client, name, data)
        if is_lost(answer):
            lost.append(name)
            raise ConnectionResetError("the answer is lost")
        return status, answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TicketClient, "_send", send_and_lose)
        patch.setattr(remote, "_FIRST_PAUSE_S", 0.001)
        yield lost


@pytest.mark.parametrize("groups_per_step", [1, 2])
def test_calls_whose_answers_are_lost_count_once(tmp_path: Path, groups_per_step: int) -> None:
    with served(tmp_path, group_size=K, groups_per_step=groups_per_step) as http:
        http.evolve()
        numbers = count()
        with lose_answers(lambda _: next(numbers) % 2 == 0) as lost:
            for number in range(8):
                ticket = http.take()
                assert isinstance(ticket, Ticket)
                assert bare(ticket.id) == f"group-{number // K}/{number % K}"
                assert http.renew(ticket.id)
                http.report(ticket.id, trajectory(ticket.task))
            ticket = http.take()
            assert isinstance(ticket, Ticket)
            http.give_back(ticket.id, EndReason.ABANDONED)
            http.close_spent_step()
        assert {"take", "report", "renew", "give_back"} <= {*lost}
        counts = http.ticket_counts
        assert (counts["taken"], counts["reported"], counts["given_back"]) == (9, 8, 1)
        assert http.metrics()["groups"] == 4


def test_a_session_can_be_pickled(tmp_path: Path) -> None:
    with served(tmp_path, group_size=K) as http:
        http.evolve()
        ticket = http.take()
        copy = pickle.loads(pickle.dumps(http))
        assert copy.outstanding_tickets == (ticket,)
        assert (copy.group_size, copy.groups_per_step, copy.lease_s) == (K, 1, 600.0)


def test_a_session_killed_between_calls_loses_nothing(tmp_path: Path) -> None:
    """The client's calls wait for the server that is started again on the same port."""
    with serve_toy(tmp_path, *SIZES) as (server, address):
        http = HTTPSession(address)
        http.evolve()
        out = [http.take() for _ in range(4)]
        first, *rest = [ticket for ticket in out if isinstance(ticket, Ticket)]
        http.report(first.id, trajectory(first.task))
        server.kill()
        assert server.wait(WAIT_S) == -signal.SIGKILL
        done = threading.Event()

        def report_rest() -> None:
            for ticket in (first, *rest):
                http.report(ticket.id, trajectory(ticket.task))
            done.set()

        threading.Thread(target=report_rest, daemon=True).start()
        assert not done.is_set()
        with serve_toy(tmp_path, *SIZES, port=address.rpartition(":")[2]):
            assert done.wait(WAIT_S)
            counts = http.ticket_counts
            assert (counts["taken"], counts["reported"], counts["double"]) == (4, 4, 1)
            assert http.metrics()["groups"] == 2


def test_a_call_that_is_never_answered_fails_with_a_sentence(tmp_path: Path) -> None:
    with served(tmp_path, group_size=K) as http:
        pass
    http._client.patience_s = 0.01
    expected = (
        rf"^{http.address} gave no answer within 0.01 s \(.*refused\). Start the server: the same "
        r"`coevo serve` command resumes its session.$"
    )
    for _ in range(2):
        with pytest.raises(StoreError, match=expected):
            http.take()


def test_a_rejected_call_raises_the_error_of_the_session(tmp_path: Path) -> None:
    with served(tmp_path, group_size=K) as http:
        http.evolve()
        ticket = http.take()
        assert isinstance(ticket, Ticket)
        for episode in ({"no": "trajectory"}, trajectory(TRAIN[90])):
            with pytest.raises(TaskError):
                http.report(ticket.id, episode)
        with pytest.raises(ConfigError, match="This state cannot be loaded"):
            http.load_state_dict({})
        with pytest.raises(ConfigError, match="greater than or equal to 0"):
            http.take(policy_version=-1)
        assert http.outstanding_tickets == (ticket,)


@contextmanager
def answering(status: int, kind: str, body: bytes) -> Iterator[str]:
    """A server that answers everything in the same way, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "body", "message"),
    [
        (200, "text/html", b"<html>", "status 200 and text/html, so it is not a server of"),
        (404, "text/html", b"<html>", "status 404 and text/html, so it is not a server of"),
        (404, "application/json", b'{"detail": "Not Found"}', "is not a server of coevo_gym"),
        (200, "application/json", b"[]", "is not a server of coevo_gym"),
        (
            404,
            "application/json",
            b'{"error": "Refused", "message": "There is no /tickets/about here."}',
            "runs another version of coevo_gym, but this process runs version",
        ),
        (200, "application/json", b'{"version": "0.0.1"}', "runs version 0.0.1 of coevo_gym"),
        (200, "application/json", b"{}", "is not a server of coevo_gym"),
        (502, "text/html", b"<html>", r"gave no answer within 0.01 s \(status 502\)"),
    ],
)
def test_another_kind_of_server_is_refused(
    status: int, kind: str, body: bytes, message: str
) -> None:
    with answering(status, kind, body) as address, pytest.raises(ConfigError, match=message):
        HTTPSession(address, patience_s=0.01)


def test_an_address_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(http_session, "CONNECT_S", 0.1)
        with pytest.raises(ConfigError, match=r"gave no answer within 0.1 s \(timed out\)"):
            HTTPSession(address)
    with pytest.raises(ConfigError, match=r"gave no answer within 0 s \(.*refused\)"):
        HTTPSession(address, patience_s=0)
    with pytest.raises(ConfigError, match="must look like http"):
        HTTPSession("the server")


def test_a_wrong_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(tmp_path / "a.db")
    with run_server(session, tokens=Tokens(TOKEN)) as server:
        for token in ("wrong", None):
            with pytest.raises(ConfigError, match="needs another token: set COEVO_TOKEN"):
                HTTPSession(server.address, token)
        for token in (f"{TOKEN}\nof an agent", "schlüssel"):
            with pytest.raises(ConfigError, match="must be one line of ASCII") as error:
                HTTPSession(server.address, token)
            assert token not in str(error.value)
        assert pickle.loads(pickle.dumps(HTTPSession(server.address, f"{TOKEN}\n"))).group_size == K
        monkeypatch.setenv("COEVO_TOKEN", TOKEN)
        assert HTTPSession(server.address).group_size == K
        assert session.ticket_counts["taken"] == 0


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(open_session(tmp_path / "a.db")) as server:
        ours, ask = coevo_gym.__version__, TicketClient.call

        def ask_older(client: TicketClient, name: str, /, **body: Any) -> Any:
            return {**ask(client, name, **body), "version": "0.0.9"}

        monkeypatch.setattr(TicketClient, "call", ask_older)
        with pytest.raises(ConfigError, match=f"version 0.0.9 of .* version {ours}. Install"):
            HTTPSession(server.address)


def test_a_session_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    session = open_session(tmp_path / "a.db", about={"benchmark": "toy"})
    with run_server(session) as server:
        http = HTTPSession(server.address)
        with pytest.raises(ConfigError, match="tasks of toy, but the env is for webshop"):
            EvolvingTaskSampler(gym.make("CoEvolve-WebShop-v0"), session=http)
        assert session.ticket_counts["taken"] == 0
        env = EvolvingTaskSampler(gym.make("Toy-v0"), session=http)
        env.reset()
        assert env.ticket in http.outstanding_tickets


def test_a_used_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        server = Forked([*COMMAND[1:], "webshop", "--port", port], tmp_path)
        text = server.stdout.read()
        assert server.wait(WAIT_S) == 2
        assert f"Cannot listen on 127.0.0.1 port {port}" in " ".join(text.split())
        assert not [*tmp_path.iterdir()]
