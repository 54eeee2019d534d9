"""Servers on the toy benchmark, in a thread of this process or in one of their own, and parts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import uvicorn

from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.serve.env_pools import EnvPools
from coevo_gym.serve.envs import EnvsAPI
from coevo_gym.serve.journaled_session import JournaledSession
from coevo_gym.serve.limits import ServerLimits
from coevo_gym.serve.server import listen, make_app, set_up_uvicorn
from coevo_gym.serve.tokens import Tokens
from tests.curricula.episodes import TRAIN
from tests.processes import Forked
from tests.toy import BENCHMARK

CONFIG = CurriculumConfig(initial_size=4, growth={"every_groups": 1000}, detector={"n_min": 1000})
WAIT_S = 60


class FindsTasks:
    """An evolver whose rounds find four tasks at once."""

    def __init__(self) -> None:
        self.n_runs = 0

    def run(self, round: Round) -> RoundResult:
        self.n_runs += 1
        at = 4 * int(round.id.removeprefix("round-"))
        return RoundResult(round_id=round.id, accepted=TRAIN[at : at + 4])


def break_off(app: Any, path: str, **headers: str) -> None:
    """Send half of a request's body to an app, and disconnect."""
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        pass

    fields = {"host": "localhost", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(name.replace("_", "-").encode(), to.encode()) for name, to in fields.items()],
    }
    asyncio.run(app(scope, receive, send))


class Clock:
    """Tells the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def open_session(path: Path, tasks: Sequence[Task] = TRAIN[:8], **fields: Any) -> JournaledSession:
    """A session that is kept in a file, with tasks from the beginning."""
    options = {"group_size": 2, "lease_s": 60.0, **fields}
    return JournaledSession(lambda: CONFIG.make(tasks), FindsTasks(), path, **options)


@dataclass
class Standing:
    """A server that stands.

    Attributes:
        address: where.
        session: what it serves.
        api: its envs API.
        env_pools: where its envs are.
    """

    address: str
    session: JournaledSession
    api: EnvsAPI
    env_pools: EnvPools


@contextmanager
def run_server(
    session: JournaledSession,
    *,
    tokens: Tokens = Tokens(),  # noqa: B008 (frozen)
    limits: ServerLimits = ServerLimits(),  # noqa: B008 (frozen)
    port: int = 0,
    env_id: str = BENCHMARK.env_id,
) -> Iterator[Standing]:
    """A server in a thread, until the end of the scope; it closes the session."""
    env_pools = EnvPools(lambda split: gym.make(env_id, split=split, disable_env_checker=True))
    about = {"name": "toy", "description": "buttons", "version": "0"}
    api = EnvsAPI(BENCHMARK, env_pools, session, limits, about)
    app = make_app(session, api, tokens=tokens, limits=limits)
    server = uvicorn.Server(set_up_uvicorn(app, limits))
    listening: socket.socket = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield Standing(address, session, api, env_pools)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()
        env_pools.close()
        listening.close()


def end_ticket(
    session: JournaledSession, ticket_id: str, episode: Trajectory | dict[str, Any] | None = None
) -> str:
    """Report an episode, or give its ticket back, and return how the ticket ended."""
    if episode is None:
        session.give_back(ticket_id, EndReason.ABANDONED)
    else:
        session.report(ticket_id, episode)
    return session.how_ended(ticket_id)


@contextmanager
def serve_toy(folder: Path, *options: str, port: str = "0") -> Iterator[tuple[Forked, str]]:
    """``coevo serve toy`` in a process that can be killed, and its address."""
    serve = ["serve", "toy", "--db", "a.db", "--port", port, *options]
    server = Forked(["-m", "tests.serve.dies_at_write", "1000000", "after", *serve], folder)
    try:
        line = server.stdout.readline()
        assert "serving toy at" in line, line
        yield server, line.split(" at ")[1].split(";")[0]
    finally:
        if server.poll() is None:
            server.kill()
            server.wait(WAIT_S)
