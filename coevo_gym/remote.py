"""Clients for `coevo serve` in processes that cannot import coevo_gym.

This file needs only Python, numpy and gymnasium 0.29 or newer, and nothing else from this project.
Copy it into the project of a trainer whose pinned packages conflict with coevo_gym.

    env = RemoteTaskEnv("http://127.0.0.1:8765")      # text in, text out; the server runs the env
    env = RemoteChoiceEnv("http://127.0.0.1:8765")    # arrays in, an index out
    tickets = TicketClient("http://127.0.0.1:8765")   # for workers that run the tasks themselves
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import logging
import os
import random
import re
import threading
import time
import uuid
import zlib
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym
import numpy as np

__all__ = ["RemoteChoiceEnv", "RemoteError", "RemoteTaskEnv", "TicketClient"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_MAX_BYTES = 2**28
_WORD = re.compile(r"\w+")


class RemoteError(RuntimeError):
    """The error raised if the server rejects a call or cannot be reached.

    Attributes:
        kind: name of the error, such as ``"TaskError"`` or ``"ServerLost"``.
        message: description of the error.
        lost: True if the error ended the episode without an outcome.
        status: HTTP status of the answer; 0 if the error is not an HTTP answer.
    """

    def __init__(self, kind: str, message: object, *, lost: bool = False, status: int = 0) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.lost, self.status = kind, str(message), lost, status


class TicketClient:
    """A client for the tickets API that takes tasks and reports their episodes.

    Each call is retried until it is answered; the server answers a repeated call with the same
    result. After a call that was never answered, further calls are tried only once, until one is
    answered. A client is thread-safe, but each process needs its own client.

    Args:
        address: server address, such as ``"http://127.0.0.1:8765"``.
        token: the server's token; None for the environment variable ``COEVO_TOKEN``.
        patience_s: seconds during which a call is retried while the server cannot be reached.
        timeout_s: maximum wait for one answer, in seconds.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        patience_s: float = 300.0,
        timeout_s: float = 60.0,
    ) -> None:
        self.address, self.patience_s = address, patience_s
        self._headers = {"Content-Type": "application/json", **_authorization_headers(token)}
        self._lock, self._is_lost = threading.Lock(), False
        self._http = _create_connection(address, timeout_s)

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, wait_s: float = 3600.0
    ) -> dict[str, Any]:
        """Take a ticket for an episode, waiting up to ``wait_s`` seconds until one is available.

        A ticket has ``id``, ``group_id``, ``index``, ``policy_version``, ``seed``, ``task_id`` and
        ``task``. Callers that specify the same ``slot`` share a group, for trainers that send
        copies of a row.
        """
        order = {"request": uuid.uuid4().hex, "policy_version": policy_version, "slot": slot}
        until = time.monotonic() + wait_s
        while "ticket" not in (answer := self.call("take", **order)):
            if time.monotonic() > until:
                raise RemoteError("Later", f"got no ticket within {wait_s:g} s. {answer['later']}")
            time.sleep(answer["retry_after_s"])
        return dict(answer["ticket"])

    def report(self, ticket_id: str, trajectory: dict[str, Any]) -> str:
        """Submit an episode as JSON and return the ticket's final status.

        ``"reported"`` means that the episode counts, once, even if it is sent repeatedly; ``"given
        back"`` or ``"lapsed"`` that it came too late; and "" that the ticket is unknown.
        """
        return str(self.call("report", ticket=ticket_id, trajectory=trajectory)["ended"])

    def give_back(self, ticket_id: str, reason: str = "abandoned") -> str:
        """Hand back the ticket of an unfinished episode, and return the ticket's final status."""
        return str(self.call("give_back", ticket=ticket_id, reason=reason)["ended"])

    def renew(self, ticket_id: str) -> bool:
        """Renew a ticket's lease; return False if the episode is no longer needed."""
        return bool(self.call("renew", ticket=ticket_id)["out"])

    def state_dict(self) -> dict[str, Any]:
        """Return the curriculum's state, so that it can be saved with the policy's checkpoint."""
        return dict(self.call("save")["state"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; outstanding tickets become invalid."""
        self.call("load", state=state)

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics and the numbers of tickets taken, reported and lost."""
        return dict(self.call("metrics")["metrics"])

    def close(self) -> None:
        """Close the connection. The next call opens it again."""
        with self._lock:
            self._http.close()

    def call(self, name: str, /, **body: Any) -> Any:
        """Send a message, retrying until the server responds.

        Raises:
            RemoteError: if the message is rejected, or not answered within ``patience_s``.
        """
        patience_s = 0.0 if self._is_lost else self.patience_s
        data, until, pause = json.dumps(body).encode(), time.monotonic() + patience_s, 0.0
        while True:
            try:
                status, answer = self._send(name, data)
                self._is_lost = False
                if status == 200:
                    return answer
                why = answer.get("message", f"status {status}")
                if status < 500:
                    raise RemoteError(answer["error"], why, status=status)
            except (OSError, http.client.HTTPException) as problem:
                why = str(problem) or type(problem).__name__
            if time.monotonic() >= until:
                self._is_lost = True
                raise RemoteError(
                    "ServerLost",
                    f"{self.address} gave no answer within {self.patience_s:g} s ({why}). Start "
                    "the server: the same `coevo serve` command resumes its session.",
                )
            pause = _back_off(pause, f"{self.address}: {why}", self.patience_s)

    def _send(self, name: str, data: bytes) -> tuple[int, dict[str, Any]]:
        """Send a message; return the status and the answer, which is {} for an error of a proxy.

        Raises:
            RemoteError: if something other than ``coevo serve`` has answered.
        """
        with self._lock:
            try:
                self._http.request("POST", f"/tickets/{name}", data, self._headers)
                reply = self._http.getresponse()
                body = reply.read()
            except BaseException:
                self._http.close()  # the next request reconnects
                raise
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        is_ours = isinstance(answer, dict) and (reply.status == 200 or "error" in answer)
        if is_ours or reply.status >= 500:
            return reply.status, answer if is_ours else {}
        kind = reply.headers.get_content_type()
        raise RemoteError(
            "NoServer",
            f"{self.address} answered with status {reply.status} and {kind}, so it is not a server "
            "of coevo_gym. Pass the address that `coevo serve` prints.",
        )


class _Texts(gym.Space[str]):
    """A space of strings with a maximum length; samples are short words."""

    is_np_flattenable = False

    def __init__(self, max_length: int) -> None:
        super().__init__((), None)
        self.max_length = max_length

    def sample(self, *_: Any, **__: Any) -> str:
        letters = self.np_random.integers(97, 123, size=int(self.np_random.integers(1, 9)))
        return "".join(map(chr, letters))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Texts) and other.max_length == self.max_length


class RemoteTaskEnv(gym.Env[Any, Any]):
    """An env that runs on a server, with text observations and text actions.

    On the split ``train``, each ``reset`` begins a task from the server's curriculum, and the
    server records the finished episode; other splits are for evaluation. If this process dies or
    closes the env during an episode, the server grades the steps so far, as with a reset. If an
    infrastructure fault ends an episode, it is truncated and its ``info["end_reason"]`` is
    ``worker_lost``. Discard its reward of 0.0, which is meaningless.

    Info keys: ``instruction``, ``admissible`` (actions known to be possible now), ``choices``,
    ``step``, ``action_valid``, ``error_kind``, ``success``, ``score`` (-1.0 until the end),
    ``end_reason`` ("" until the end), and the benchmark's own.

    Args:
        address: server address, such as ``"http://127.0.0.1:8765"``.
        token: the server's token; None for the environment variable ``COEVO_TOKEN``.
        split: ``"train"``, ``"val"`` or ``"test"``.
        choices: maximum number of candidate actions in ``info["choices"]``; 0 for none.
        patience_s: seconds during which ``reset`` retries while the server cannot be reached.
        timeout_s: maximum wait for an answer, in seconds; finding the first task may take long.

    Attributes:
        policy_version: policy version to report from the next ``reset`` on, set by the trainer.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        split: str = "train",
        choices: int = 0,
        patience_s: float = 300.0,
        timeout_s: float = 3600.0,
    ) -> None:
        self.address, self.split, self.n_choices = address, split, choices
        self.patience_s, self.timeout_s = patience_s, timeout_s
        self.policy_version = 0
        self.observation_space: gym.Space[Any] = _Texts(100_000)
        self.action_space: gym.Space[Any] = _Texts(20_000)
        self._headers = _authorization_headers(token)
        _create_connection(address, timeout_s)  # raises ValueError for an invalid address
        self._socket: _WebSocket | None = None
        self._last: tuple[str, dict[str, Any]] = ("", {})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; options are ``slot``, ``policy_version`` and ``task`` (name or id)."""
        super().reset(seed=seed)
        order = {"split": self.split, "choices": self.n_choices, **(options or {})}
        order.setdefault("policy_version", self.policy_version)
        if seed is not None and self.split != "train":
            order["seed"] = int(seed)
        until, pause = time.monotonic() + self.patience_s, 0.0
        while True:
            try:
                self._last = self._parse_frame(self._ask("reset", order))
                return self._last[0], dict(self._last[1])
            except RemoteError as error:
                if not error.lost or time.monotonic() > until:
                    raise
                pause = _back_off(pause, str(error), self.patience_s)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute an action."""
        if not isinstance(action, str):
            raise TypeError(f"The action must be a str, got {type(action).__name__}")
        if not self._last[1]:
            raise RemoteError("ResetNeeded", "No episode is running. Call reset() first.")
        try:
            frame = self._ask("step", {"action": action})
        except RemoteError as error:
            if not error.lost:
                raise
            text, info = self._last
            return text, 0.0, False, True, {**info, "end_reason": "worker_lost"}
        self._last = self._parse_frame(frame)
        ends = frame["metadata"]
        reward, info = float(frame["reward"]), dict(self._last[1])
        return self._last[0], reward, ends["terminated"], ends["truncated"], info

    def close(self) -> None:
        """Disconnect from the server, which ends any running episode. May be called repeatedly."""
        if self._socket is not None:
            leaving, self._socket = self._socket, None
            leaving.close()

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the response; close the connection after an error."""
        try:
            if self._socket is None:
                if kind == "step":
                    raise OSError("the connection is closed, so the episode is lost")
                self._socket = _WebSocket(self.address, self._headers, self.timeout_s)
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.receive())
        except BaseException as error:  # a late answer must not be read as the next message's
            self.close()
            if not isinstance(error, (OSError, ValueError)):
                raise
            raise RemoteError("ServerLost", f"{self.address}: {error}", lost=True) from error
        details: dict[str, Any] = answer["data"]
        if answer["type"] == "error":
            if gone := details["code"] in ("CAPACITY_REACHED", "SESSION_ERROR"):
                self.close()
            raise RemoteError(
                details["code"], details["message"], lost=gone or bool(details.get("lost"))
            )
        return details

    def _parse_frame(self, frame: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        page = frame["observation"]
        info = {"success": False, "score": -1.0, "end_reason": "", **page["info"]}
        info["instruction"] = page["instruction"]
        info["admissible"] = tuple(page["admissible"])
        info["choices"] = tuple(page.get("choices", ()))
        return page["text"], info


class RemoteChoiceEnv(RemoteTaskEnv):
    """A remote env for array-based learners, with observations as arrays of hashed words.

    An observation has ``obs``, (dim,), the hashed words of page and instruction; ``choices``,
    (max_choices, dim), the hashed words of each choice, with zeros beyond the last; and
    ``action_mask``, (max_choices,), with 1 for each valid index. An action is the index of a
    choice; an index that the mask excludes sends an empty action.

    Args:
        *args: arguments of :class:`RemoteTaskEnv`.
        max_choices: size of the action space.
        dim: vector size; words share a position if their CRC-32 hashes agree modulo ``dim``.
        **kwargs: keyword arguments of :class:`RemoteTaskEnv`.
    """

    def __init__(self, *args: Any, max_choices: int = 64, dim: int = 512, **kwargs: Any) -> None:
        super().__init__(*args, choices=max_choices, **kwargs)
        self.dim = dim
        self.observation_space = gym.spaces.Dict(
            {
                "obs": gym.spaces.Box(0.0, 1.0, (dim,), np.float32),
                "choices": gym.spaces.Box(0.0, 1.0, (max_choices, dim), np.float32),
                "action_mask": gym.spaces.MultiBinary(max_choices),
            }
        )
        self.action_space = gym.spaces.Discrete(max_choices)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see :meth:`RemoteTaskEnv.reset`."""
        return self._to_arrays(*super().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute the choice at the given index.

        Raises:
            ValueError: if the index is outside the action space.
        """
        offered, index = self._last[1].get("choices", ()), int(action)
        if not 0 <= index < self.n_choices:
            raise ValueError(f"action must be an index from 0 to {self.n_choices - 1}, got {index}")
        text = offered[index] if index < len(offered) else ""
        page, reward, terminated, truncated, info = super().step(text)
        observation, info = self._to_arrays(page, info)
        return observation, reward, terminated, truncated, info

    def _to_arrays(self, page: str, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = np.zeros(self.n_choices, np.int8)
        mask[: max(1, len(info["choices"]))] = 1
        choices = np.zeros((self.n_choices, self.dim), np.float32)
        for row, text in enumerate(info["choices"]):
            choices[row] = _word_vector(text, self.dim)
        both = _word_vector(page, self.dim) + _word_vector(info["instruction"], self.dim, "goal ")
        seen = {"obs": _normalise(both).astype(np.float32), "choices": choices, "action_mask": mask}
        return seen, {**info, "action_mask": mask.copy()}


def _word_vector(text: str, dim: int, place: str = "") -> Any:
    """Return the word counts of a string as a vector scaled to length 1."""
    counts = np.zeros(dim)
    for word in _WORD.findall(text.lower()):
        counts[zlib.crc32((place + word).encode()) % dim] += 1.0
    return _normalise(counts)


def _normalise(vector: Any) -> Any:
    return vector / max(float(np.linalg.norm(vector)), 1.0)


def _authorization_headers(token: str | None) -> dict[str, str]:
    token = (os.environ.get("COEVO_TOKEN", "") if token is None else token).strip()
    if not token.isascii() or "\n" in token:  # http.client would quote it in its error
        raise ValueError(
            "The token must be one line of ASCII characters. Set COEVO_TOKEN to the first line of "
            "the server's --token-file."
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _create_connection(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return an unopened connection to an address. The URL scheme may be omitted."""
    url = urlsplit(address if "//" in address else f"//{address}")
    if url.hostname and url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port or 443, timeout=timeout_s)
    if url.hostname and url.scheme in ("", "http") and url.port:
        return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
    raise ValueError(f"The address must look like http://127.0.0.1:8765, got {address!r}")


def _back_off(pause: float, why: str, patience_s: float) -> float:
    """Wait with exponential back-off. Return the pause in seconds, without its random jitter."""
    if not pause:
        logging.getLogger(__name__).warning("%s; retrying for up to %g s", why, patience_s)
    pause = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
    time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
    return pause


class _WebSocket:
    """A WebSocket client (RFC 6455) that supports only JSON messages."""

    def __init__(self, address: str, headers: dict[str, str], timeout_s: float) -> None:
        upgrade = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
        }
        greeting = _create_connection(address, min(timeout_s, 30.0))
        try:
            greeting.connect()
            self._socket = greeting.sock
            greeting.request("GET", "/ws", headers={**upgrade, **headers})
            # Read from the socket itself: http.client closes the connection after an upgrade.
            self._file = self._socket.makefile("rb")
            status = self._file.readline(65536).decode("latin-1").split(" ", 2)
            http.client.parse_headers(self._file)
            if len(status) < 2 or status[1] != "101":
                reason = " ".join(status[1:]).strip() or "no answer"
                raise RemoteError("Refused", f"{reason}. Check the server's address and token.")
            self._socket.settimeout(timeout_s)
        except BaseException:
            greeting.close()
            raise

    def send(self, text: str) -> None:
        self._write_frame(_TEXT, text.encode())

    def receive(self) -> str:
        """Return the next text message."""
        message = b""
        while True:
            last, opcode, payload = self._read_frame()
            if opcode == _PING:
                self._write_frame(_PONG, payload)
            elif opcode == _CLOSE:
                raise OSError("the server has closed the connection")
            elif opcode != _PONG:
                message += payload
                if last:
                    return message.decode()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end may have closed it
            self._write_frame(_CLOSE, (1000).to_bytes(2, "big"))
        self._file.close()
        self._socket.close()

    def _read_frame(self) -> tuple[bool, int, bytes]:
        first, size = self._read_exactly(2)
        if size >= 126:
            size = int.from_bytes(self._read_exactly(2 if size == 126 else 8), "big")
        if size > _MAX_BYTES:
            raise OSError(f"a message is longer than {_MAX_BYTES} bytes")
        return bool(first & 0x80), first & 0xF, self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise OSError("the connection has been closed")
        return data

    def _write_frame(self, opcode: int, payload: bytes) -> None:
        size, key = len(payload), os.urandom(4)
        more = 0 if size < 126 else 2 if size < 65536 else 8
        mask = np.frombuffer((key * (size // 4 + 1))[:size], np.uint8)
        head = bytes([0x80 | opcode, 0x80 | {0: size, 2: 126, 8: 127}[more]])
        length = size.to_bytes(more, "big") if more else b""
        masked = (np.frombuffer(payload, np.uint8) ^ mask).tobytes()
        self._socket.sendall(head + length + key + masked)
