"""The session of a `coevo serve` server, used from any process or machine.

    session = HTTPSession("http://127.0.0.1:8765")
    env = EvolvingTaskSampler(gym.make("CoEvolve-WebShop-v0"), session=session)

All processes of a trainer share the server's curriculum: one pool, one set of groups, one state to
save. Calls are repeated while the server is restarted, and each of them counts once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast
from uuid import uuid4

from coevo_gym.core import errors
from coevo_gym.core.errors import CoevoError, ConfigError, EnvBackendError, StoreError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.curricula.session.curriculum_session import Seeds
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
    call_name,
    call_to_json,
    group_from_json,
    ticket_from_json,
)
from coevo_gym.remote import RemoteError, TicketClient

CONNECT_S = 30.0
"""Maximum seconds to wait for a server that is still starting."""
ROUND_S = 3600.0
"""Maximum seconds to wait for an evolution round."""


class HTTPSession(TaskSession):
    """A client that sends each call to the session of a `coevo serve` server.

    It can be pickled, and created in any process. If the server does not answer, a call is repeated
    for ``patience_s`` seconds under the same name, so that it counts once, also if the server is
    killed and restarted in between. The server runs rounds by itself while episodes are played;
    :meth:`evolve` waits for a round that is running.

    Args:
        address: address of the server, such as ``"http://127.0.0.1:8765"``.
        token: the server's token; None for the environment variable ``COEVO_TOKEN``.
        patience_s: seconds during which a call is repeated while the server does not answer.

    Attributes:
        address: address of the server.
        group_size: K, the number of episodes per group.
        groups_per_step: number of groups that the trainer uses per step.

    Raises:
        ConfigError: if there is no server at the address, it needs another token, or it runs
            another version of coevo_gym.
    """

    def __init__(
        self, address: str, token: str | None = None, *, patience_s: float = 300.0
    ) -> None:
        from coevo_gym import __version__

        self.address, self._token = address, token
        try:
            self._client = TicketClient(address, token, patience_s=patience_s)
            brief = {"patience_s": min(patience_s, CONNECT_S), "timeout_s": CONNECT_S}
            with closing(TicketClient(address, token, **brief)) as client:
                about = client.call("about")
        except ValueError as error:
            raise ConfigError(str(error)) from error
        except RemoteError as error:
            raise ConfigError(self._explain_failure(error)) from error
        if "version" not in about:
            raise ConfigError(
                f"{address} is not a server of coevo_gym. Pass the address that `coevo serve` "
                "prints."
            )
        if about["version"] != __version__:
            raise ConfigError(_explain_version(address, f"version {about['version']}"))
        self._seeds = Seeds.from_seed(about["seed"])
        self.lease_s = cast("float | None", about["lease_s"])
        self.benchmark = str(about.get("benchmark", ""))
        self.group_size, self.groups_per_step = about["group_size"], about["groups_per_step"]

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect, (self.address, self._token, self._client.patience_s)

    def execute(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Send a call to the server and return its answer.

        Raises:
            StoreError: if the server did not answer in time.
            CoevoError: if the server rejected the call, as a session in this process would.
        """
        answer: Any
        match call:
            case Take():
                body = {**call_to_json(call), "request": call.request or uuid4().hex}
                reply = self._send("take", **body)
                later = reply.get("later")
                answer = ticket_from_json(reply["ticket"]) if later is None else Later(later)
            case Report() | GiveBack():
                closed = self._send(call_name(call), **call_to_json(call), group=True)["group"]
                answer = closed and group_from_json(closed)
            case Renew():
                answer = self._send("renew", ticket=call.ticket)["out"]
            case Evolve():
                answer = self._wait_for_round(call)
            case Sweep():
                answer = self._send("sweep")["expired"]
            case CloseSpentStep():
                answer = self._send("close_spent_step")["closed"]
            case _:
                raise TypeError(f"A session has no call {type(call).__name__}.")
        return cast("AnswerT", answer)

    @property
    def is_evolving(self) -> bool:
        """True while a round is running or waiting for a retry."""
        return bool(self._send("status")["is_evolving"])

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Counts of tickets by event, and of dropped reports by reason."""
        return dict(self._send("status")["ticket_counts"])

    @property
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """Tickets that have been neither reported nor returned, oldest first."""
        return tuple(map(ticket_from_json, self._send("outstanding")["tickets"]))

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics, with ticket counts such as ``tickets_out``."""
        return dict(self._send("metrics")["metrics"])

    def seed_of(self, ticket: Ticket) -> int:
        """Return the env seed for a ticket's episode."""
        return self._seeds.episode_seed(ticket)

    def state_dict(self) -> dict[str, Any]:
        """Return the session's complete state as JSON. Issued tickets are invalid in it."""
        return dict(self._send("save")["state"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`, invalidating all issued tickets."""
        self._send("load", state=dict(state))

    def _wait_for_round(self, call: Evolve) -> RoundResult | None:
        if call.result is not None:
            raise ConfigError("A served session runs its rounds itself. Call evolve() instead.")
        request, until = uuid4().hex, time.monotonic() + ROUND_S
        while "later" in (reply := self._send("evolve", request=request)):
            if time.monotonic() > until:
                raise EnvBackendError(
                    f"The round at {self.address} did not end within {ROUND_S:g} s. "
                    f"{reply['later']}"
                )
            time.sleep(reply["retry_after_s"])
        result = reply["result"]
        return None if result is None else RoundResult.model_validate(result)

    def _send(self, name: str, /, **body: Any) -> Any:
        try:
            return self._client.call(name, **body)
        except RemoteError as error:
            kind = getattr(errors, error.kind, None)
            if isinstance(kind, type) and issubclass(kind, CoevoError):
                raise kind(error.message) from error
            lost = error.kind == "ServerLost"
            raise (StoreError if lost else ConfigError)(self._explain_failure(error)) from error

    def _explain_failure(self, error: RemoteError) -> str:
        """Return a sentence for an error that is not the session's own."""
        if error.status == 401:
            return (
                f"The server at {self.address} needs another token: set COEVO_TOKEN, or pass "
                "token=, to the first line of its --token-file."
            )
        if error.status == 404:
            return _explain_version(self.address, "another version")
        prefix = f"The server at {self.address} rejected the call: " if error.status else ""
        return prefix + error.message


def _explain_version(address: str, theirs: str) -> str:
    from coevo_gym import __version__

    return (
        f"The server at {address} runs {theirs} of coevo_gym, but this process runs version "
        f"{__version__}. Install the same version for both."
    )


def _connect(address: str, token: str | None, patience_s: float) -> HTTPSession:
    return HTTPSession(address, token, patience_s=patience_s)
