"""The complete server for a benchmark: its session, its ASGI app and its listening socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark, get_benchmark
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.seams import Curriculum
from coevo_gym.curricula.session.stream import make_curriculum_for_env, scripted_evolver
from coevo_gym.envs.base import TaskEnv
from coevo_gym.provision import explain_missing
from coevo_gym.serve.env_pools import EnvPools
from coevo_gym.serve.journaled_session import JournaledSession
from coevo_gym.serve.limits import ServerLimits, connection_bounds, raise_file_limit
from coevo_gym.serve.tokens import Tokens

NEEDS = ("`coevo serve` needs extra packages: starlette, uvicorn and websockets.", "serve")

with explain_missing(*NEEDS):
    import uvicorn
    from anyio.lowlevel import checkpoint
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp

    from coevo_gym.serve.envs import EnvsAPI
    from coevo_gym.serve.guard import Guard
    from coevo_gym.serve.tickets import ticket_routes

logger = logging.getLogger(__name__)

SWEEP_S = 1.0


@dataclass(frozen=True)
class ServedCurriculum:
    """Settings for the curriculum that a server provides.

    Attributes:
        benchmark: name of the benchmark.
        curriculum: name of the method that provides the curriculum.
        group_size: K, episodes per group.
        groups_per_step: groups that the trainer learns from at once.
        evolve_every_groups: groups between consecutive evolution rounds.
        initial_size: number of tasks that the first round looks for.
        seed: seed of the whole task stream.
        lease_s: seconds after which a ticket expires unless it is renewed.
        max_staleness: maximum number of policy versions that a group may span and still count.
        max_steps: maximum steps per episode; None for the benchmark's default.
    """

    benchmark: str
    curriculum: str
    group_size: int = 8
    groups_per_step: int = 1
    evolve_every_groups: int = 320
    initial_size: int = 100
    seed: int = 0
    lease_s: float = 900.0
    max_staleness: int = 0
    max_steps: int | None = None

    @property
    def bench(self) -> Benchmark:
        """The benchmark whose tasks the server provides."""
        return get_benchmark(self.benchmark)

    def make_env(self, split: str) -> gym.Env[str, str]:
        """Create an env for a split."""
        more = {} if self.max_steps is None else {"max_steps": self.max_steps}
        return gym.make(self.bench.env_id, split=split, disable_env_checker=True, **more)

    def open_session(self, path: Path, *, recover: bool = False) -> JournaledSession:
        """Open a session stored in a file. Create the file if it is missing.

        Args:
            path: path of the file.
            recover: if a call in the file cannot be replayed, continue from the state before it.

        Raises:
            ConfigError: if a setting is invalid.
            StoreError: if the file cannot be used or replayed, or belongs to another session.
        """
        with closing(self.make_env("train")) as env:
            bare = cast(TaskEnv, env.unwrapped)
            evolver = scripted_evolver(bare)

        def make() -> Curriculum:
            return make_curriculum_for_env(
                self.curriculum,
                bare,
                growth={"every_groups": self.evolve_every_groups},
                initial_size=self.initial_size,
            )

        about = {
            name: getattr(self, name)
            for name in ("benchmark", "curriculum", "evolve_every_groups", "initial_size")
        }
        return JournaledSession(
            make,
            evolver,
            path,
            about={**about, "max_steps": self.max_steps or 0},
            group_size=self.group_size,
            groups_per_step=self.groups_per_step,
            seed=self.seed,
            lease_s=self.lease_s,
            max_staleness=self.max_staleness,
            recover=recover,
        )


def make_app(
    session: JournaledSession,
    envs: EnvsAPI,
    *,
    tokens: Tokens = Tokens(),  # noqa: B008 (frozen)
    hosts: Collection[str] = (),
    limits: ServerLimits = ServerLimits(),  # noqa: B008 (frozen)
) -> ASGIApp:
    """Create the ASGI app that serves a session.

    Args:
        session: session to serve; the app closes it on shutdown.
        envs: the envs API.
        tokens: secrets that grant access.
        hosts: host names of the server.
        limits: limits on the resources that clients may use.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await checkpoint()  # import what threads need while files can still be opened
        sweeping = asyncio.create_task(_sweep_regularly(session))
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            envs.close()
            await run_in_threadpool(session.close)

    app = Starlette(
        routes=[*ticket_routes(session), *envs.routes],
        lifespan=lifespan,
        exception_handlers={HTTPException: _answer_http_error},
    )
    return Guard(app, tokens=tokens, hosts=hosts, body_bytes=limits.body_bytes)


async def _sweep_regularly(session: JournaledSession) -> None:
    """Reclaim expired tickets at regular intervals, even without client requests."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await run_in_threadpool(session.sweep)
        except StoreError as error:
            logger.error("%s", error)
            return  # every call reports this error from now on


async def _answer_http_error(request: Request, error: Exception) -> Any:
    """Return an HTTP error in the same JSON format as all other errors."""
    assert isinstance(error, HTTPException)
    what = {404: f"There is no {request.url.path} here.", 405: "Send a POST."}
    message = what.get(error.status_code, error.detail)
    return JSONResponse({"error": "Refused", "message": message}, error.status_code)


def listen(host: str, port: int) -> socket.socket:
    """Create a listening socket; port 0 selects a free port.

    Raises:
        ConfigError: if the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}. Choose another "
            "--port, or pass --port 0 for any free port."
        ) from error


def serve(
    practice: ServedCurriculum,
    path: Path,
    listening: socket.socket,
    *,
    tokens: Tokens,
    hosts: Collection[str] = (),
    limits: ServerLimits = ServerLimits(),  # noqa: B008 (frozen)
    ready: Callable[[JournaledSession], None] = lambda _: None,
    recover: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM arrives, then finish the requests in progress.

    Args:
        practice: settings of the curriculum.
        path: path of the session file.
        listening: listening socket.
        tokens: secrets that grant access.
        hosts: host names of the server, in addition to localhost and this machine's own names.
        limits: limits on the resources that clients may use.
        ready: function called when the server is ready for clients.
        recover: if a call in the file cannot be replayed, continue from the state before it.

    Raises:
        ImportError: if the extra ``serve`` is not installed.
        ConfigError: if a setting is invalid.
        StoreError: if the file cannot be used or replayed, or belongs to another session.
    """
    from coevo_gym import __version__

    with explain_missing(*NEEDS):
        import websockets  # noqa: F401

    opened = practice.open_session(path, recover=recover)
    with closing(opened) as session, closing(EnvPools(practice.make_env)) as env_pools:
        about = {
            "name": practice.bench.env_id,
            "description": f"Tasks of {practice.benchmark}. On the split train, the curriculum "
            f"{practice.curriculum!r} chooses the task of each reset.",
            "version": __version__,
        }
        api = EnvsAPI(practice.bench, env_pools, session, limits, about)
        app = make_app(session, api, tokens=tokens, hosts=hosts, limits=limits)

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                api.close()  # before clients are disconnected
                super().handle_exit(sig, frame)

        server = Server(set_up_uvicorn(app, limits))
        ready(session)
        server.run(sockets=[listening])


def set_up_uvicorn(app: ASGIApp, limits: ServerLimits) -> Any:
    """Set up this process to serve an app, and return the ``uvicorn.Config`` to use.

    The function raises the limit on open files, and keeps tracebacks of errors that a client's
    message caused out of the log.

    Args:
        app: the app.
        limits: limits on the resources that clients may use.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="websockets-sansio",
        ws_max_size=limits.message_bytes,
        ws_ping_interval=None,  # a client that trains for minutes answers no pings
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=10,
        server_header=False,
        **connection_bounds(raise_file_limit(limits.sessions)),
    )
    logging.getLogger("uvicorn.error").addFilter(_drop_traceback)
    return config


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback of an error that a client's message caused."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True
