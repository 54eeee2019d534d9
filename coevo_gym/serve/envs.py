"""The envs API, through which third-party agents use envs over OpenEnv's protocol.

Each WebSocket connection has one env. A client sends
``{"type": "reset" | "step" | "state" | "close", "data": {…}}`` and receives one message of type
``observation``, ``state`` or ``error``. When a client disconnects, its episode ends as by a reset:
after at least one step, it is graded and recorded; before the first step, its ticket is returned.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import CoevoError, EnvBackendError, ResetNeeded
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.curricula.session.session_calls import AnswerT, SessionCall, TaskSession
from coevo_gym.serve.client_env import ActionOrder, ClientEnv, ResetOrder
from coevo_gym.serve.env_pools import EnvPools
from coevo_gym.serve.journaled_session import JournaledSession
from coevo_gym.serve.limits import ServerLimits

PATIENCE_S = 3600.0
"""Maximum seconds to wait for a ticket while the first evolution round is running."""
POLL_S = 0.5


class LocalSession(TaskSession):
    """A session for envs in this process; taking a ticket waits for the initial tasks.

    Episodes end with the process, so their tickets are given back when the session is opened again.

    Args:
        session: session that provides the tasks.
        stop: event that cancels this wait.
    """

    def __init__(self, session: JournaledSession, stop: threading.Event) -> None:
        self._session, self._stop = session, stop
        self.lease_s = session.lease_s

    def execute(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Execute a call and return its answer.

        Raises:
            EnvBackendError: if no ticket is available in time, or the wait is stopped.
        """
        begun = time.monotonic()
        while True:
            answer = self._session.execute(call, mine=True)
            if not isinstance(answer, Later):
                return answer
            waited = time.monotonic() - begun
            if waited >= PATIENCE_S or self._stop.wait(POLL_S):
                raise EnvBackendError(
                    f"No episode became available within {round(waited)} s. {answer.reason}"
                )

    @property
    def is_evolving(self) -> bool:
        """True while a round is running or waiting for a retry."""
        return self._session.is_evolving

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Counts of the tickets taken, in total and by outcome."""
        return self._session.ticket_counts

    @property
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """Tickets that have been neither reported nor returned, oldest first."""
        return self._session.outstanding_tickets

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        return self._session.metrics()

    def seed_of(self, ticket: Ticket) -> int:
        """Return the env seed for a ticket's episode."""
        return self._session.seed_of(ticket)

    def state_dict(self) -> dict[str, Any]:
        """Return the session's complete state as JSON."""
        return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`, invalidating all issued tickets."""
        self._session.load_state_dict(state)


logger = logging.getLogger(__name__)

_TEXT = {"type": "string"}
OBSERVATION: dict[str, Any] = {
    "title": "TextObservation",
    "type": "object",
    "required": ["text", "instruction", "admissible", "info"],
    "properties": {
        "text": {**_TEXT, "description": "what the env shows"},
        "instruction": {**_TEXT, "description": "what the agent is asked to do now"},
        "admissible": {
            "type": "array",
            "items": _TEXT,
            "description": "actions known to be possible now; empty where they cannot be listed",
        },
        "choices": {
            "type": "array",
            "items": _TEXT,
            "description": "actions that a scorer may choose from, if the reset asked for some",
        },
        "info": {
            "type": "object",
            "description": "step, action_valid, error_kind and the benchmark's own keys; success, "
            "score and end_reason once the episode is over",
        },
    },
}
STATE: dict[str, Any] = {
    "title": "EpisodeState",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
    },
}


class EnvsAPI:
    """The routes of the envs API, with counters for its clients and steps.

    Args:
        benchmark: benchmark of the envs.
        env_pools: pools to take envs from.
        session: session that provides the tasks of the training split.
        limits: limits on the resources that clients may use.
        about: name, description and version of the server, for ``/metadata``.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        env_pools: EnvPools,
        session: JournaledSession,
        limits: ServerLimits,
        about: dict[str, str],
    ) -> None:
        self._benchmark, self._env_pools = benchmark, env_pools
        self._limits, self._about = limits, about
        self._stop = threading.Event()
        self._session = LocalSession(session, self._stop)
        self._threads: CapacityLimiter | None = None
        self.n_sessions = 0
        self.n_steps = 0

    @property
    def routes(self) -> list[BaseRoute]:
        """The ``/ws`` route for clients, and routes that describe the protocol."""
        schema = {
            "action": ActionOrder.model_json_schema(mode="serialization"),
            "observation": OBSERVATION,
            "state": STATE,
        }
        return [
            WebSocketRoute("/ws", self.serve_client),
            Route("/schema", _json_endpoint(lambda: schema)),
            Route("/metadata", _json_endpoint(lambda: self._about)),
            Route("/health", _json_endpoint(lambda: {"status": "healthy"})),
        ]

    def close(self) -> None:
        """Stop serving clients; each client's session ends with its connection.

        The tickets of running episodes are returned, because the clients did not end them.
        """
        self._stop.set()

    async def serve_client(self, socket: WebSocket) -> None:
        """Serve one client until it disconnects or times out, or until the server stops."""
        await socket.accept()
        most = self._limits.sessions
        if self.n_sessions >= most:
            why = f"All {most} envs are in use. Close one, or restart with a higher --sessions."
            await socket.send_text(_error_message("CAPACITY_REACHED", why))
            await socket.close(1013)
            return
        self.n_sessions += 1
        self._threads = self._threads or CapacityLimiter(most)
        env = ClientEnv(self._benchmark, self._env_pools, self._session)
        try:
            await self._answer_messages(socket, env)
        except (WebSocketDisconnect, RuntimeError) as error:
            logger.debug("client disconnected: %r", error)
        finally:
            try:
                leave = partial(env.close, grade=not self._stop.is_set())
                await asyncio.shield(to_thread.run_sync(leave, limiter=self._threads))
            finally:
                self.n_sessions -= 1

    async def _answer_messages(self, socket: WebSocket, env: ClientEnv) -> None:
        while True:
            try:
                text = await asyncio.wait_for(socket.receive_text(), self._limits.idle_s)
            except TimeoutError:
                why = f"No message arrived for {self._limits.idle_s:g} s, so the env was closed."
                await socket.send_text(_error_message("SESSION_ERROR", why))
                await socket.close(1001)
                return
            except KeyError:  # bytes instead of text
                await socket.send_text(
                    _error_message("INVALID_JSON", "A message must be JSON in a text frame.")
                )
                continue
            kind, data, problem = _parse_message(text)
            if problem is None and kind == "close":
                await socket.close()
                return
            if problem is None:
                answer = await to_thread.run_sync(
                    self._execute_message, env, kind, data, limiter=self._threads
                )
            else:
                answer = problem
            await socket.send_text(answer)

    def _execute_message(self, client: ClientEnv, kind: str, data: dict[str, Any]) -> str:
        """Return the response to a message (called in a worker thread)."""
        try:
            if kind == "reset":
                return _dump_message("observation", client.reset(ResetOrder.model_validate(data)))
            if kind == "step":
                self.n_steps += 1
                return _dump_message("observation", client.step(ActionOrder.model_validate(data)))
            return _dump_message("state", client.state())
        except ValidationError as error:
            problems = json.loads(error.json(include_url=False, include_input=False))
            return _error_message("VALIDATION_ERROR", f"Invalid {kind} message: {problems}")
        except EnvBackendError as error:
            logger.warning("episode lost error=%s", error)
            why = f"The episode was lost to a fault and must not count: {error}"
            return _error_message("EXECUTION_ERROR", why, lost=True)
        except (CoevoError, ResetNeeded) as error:
            return _error_message("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
        except Exception as error:
            logger.exception("a client's %s failed", kind)
            return _error_message(
                "EXECUTION_ERROR", f"{type(error).__name__} in the server", lost=True
            )


def _parse_message(text: str) -> tuple[str, dict[str, Any], str | None]:
    """Parse a client's message. Return its type, its data, and an error response or None."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        return "", {}, _error_message("INVALID_JSON", f"Invalid JSON: {error}")
    kind = message.get("type") if isinstance(message, dict) else None
    if kind not in ("reset", "step", "state", "close"):
        return "", {}, _error_message("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")
    data = message.get("data")
    return kind, {} if data is None else data, None


def _dump_message(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def _error_message(code: str, message: str, **more: Any) -> str:
    return _dump_message("error", {"message": message, "code": code, **more})


def _json_endpoint(answer: Callable[[], dict[str, Any]]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(answer())

    return endpoint
