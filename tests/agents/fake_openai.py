"""A small HTTP server that speaks OpenAI's chat completions, by a script.

It answers only the prompts it was told to expect, each with its list of behaviours in order, or any
prompt by a function, and refuses whatever is not in the schema. What it refused for that is in
``problems``. It counts what it is asked and the tokens that it tells.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PATIENCE_S = 300.0
"""Longest wait for an event: only a test that fails waits that long."""
IDLE_S = 30.0
"""After so long without a request, the server hangs up; some clients wait for that."""

Messages = tuple[tuple[str, str], ...]


class Say(NamedTuple):
    """A chat completion."""

    text: str | None
    finish_reason: str = "stop"
    usage: tuple[int, int] | None = (10, 5)
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str | None = None


class Refuse(NamedTuple):
    """An error in OpenAI's form."""

    status: int
    message: str = "No."
    code: str | int | None = None
    kind: str = "error"
    headers: Mapping[str, str] = {}


class Raw(NamedTuple):
    """Any body."""

    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    status: int = 200


class Flood(NamedTuple):
    """A body that goes on until the client hangs up; at most ``n_bytes``."""

    n_bytes: int = 64 << 20
    status: int = 200
    headers: Mapping[str, str] = {}


class Drop(NamedTuple):
    """The connection ends in the middle of the body."""


@dataclass(frozen=True)
class Hold:
    """Nothing until ``until`` is set, then the behaviour ``then``."""

    then: Say | Refuse
    until: threading.Event = field(default_factory=threading.Event)


Behaviour = Say | Refuse | Raw | Flood | Drop | Hold


class FakeOpenAI:
    """The server; a context manager.

    Args:
        model: the one model it serves.
        key: what it takes as a key; None for any.
        own_temperature: whether it refuses a temperature other than 1, as reasoning models do.
        answer: what it does about a prompt that it was not told to expect.
    """

    def __init__(
        self,
        model: str = "fake",
        key: str | None = None,
        *,
        own_temperature: bool = False,
        answer: Callable[[Messages], Behaviour] | None = None,
    ) -> None:
        self.model = model
        self.key = key
        self.own_temperature = own_temperature
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.problems: list[str] = []
        self.cookies: list[str] = []
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.answered = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._answer = answer
        self._script: dict[Messages, list[Behaviour]] = {}
        self._holds: list[threading.Event] = []
        self._changed = threading.Condition()
        self._http = _Server(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def expect(self, prompt: str | Sequence[tuple[str, str]], *behaviours: Behaviour) -> None:
        """Answer a prompt (messages, or the text of one user message) by these, one each time."""
        messages = (("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
        self._script.setdefault(messages, []).extend(behaviours)
        self._holds += [each.until for each in behaviours if isinstance(each, Hold)]

    @property
    def url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def wait_until(self, holds: Callable[[FakeOpenAI], bool]) -> None:
        """Wait for a state of the counters."""
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self), PATIENCE_S):
                raise TimeoutError(f"in_flight={self.in_flight} answered={self.answered}")

    def change_counts(self, **changes: int) -> None:
        """Change counters, and wake who waits for them."""
        with self._changed:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self._changed.notify_all()

    def next_behaviour(self, key: str, body: dict[str, Any]) -> Behaviour:
        """What to do about a request."""
        with self._changed:
            self.keys.append(key)
            self.bodies.append(body)
            if wrong := _find_problem(body):
                self.problems.append(wrong)
                return Refuse(400, wrong, "invalid_request_error")
            if self.key is not None and key != self.key:
                return Refuse(401, f"Incorrect API key provided: {key}", "invalid_api_key")
            if body["model"] != self.model:
                return Refuse(404, f"There is no model {body['model']!r}.", "model_not_found")
            if self.own_temperature and (temperature := body.get("temperature", 1)) != 1:
                return Refuse(
                    400,
                    f"Unsupported value: 'temperature' does not support {temperature} with this "
                    "model. Only the default (1) value is supported.",
                    "unsupported_value",
                    "invalid_request_error",
                )
            messages = tuple((each["role"], each["content"]) for each in body["messages"])
            behaviours = self._script.get(messages)
            if not behaviours and self._answer is not None:
                return self._answer(messages)
            if not behaviours:
                self.problems.append(f"unexpected prompt: {messages}")
                return Refuse(400, "unexpected prompt")
            return behaviours.pop(0)

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for event in self._holds:
            event.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, fake: FakeOpenAI) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):  # a client may hang up
            self.fake.problems.append(repr(error))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.fake.change_counts(connections=1)

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_POST(self) -> None:
        fake = self.server.fake
        content = self.rfile.read(int(self.headers["Content-Length"]))
        fake.change_counts(in_flight=1)
        try:
            if self.path != "/v1/chat/completions":
                behaviour: Behaviour = Refuse(404, f"There is no {self.path}.")
            else:
                fake.cookies += self.headers.get_all("Cookie", [])
                scheme, _, key = self.headers.get("Authorization", "").partition(" ")
                assert scheme == "Bearer", "no bearer token"
                assert self.headers["Content-Type"] == "application/json"
                behaviour = fake.next_behaviour(key, json.loads(content))
            if isinstance(behaviour, Hold):
                assert behaviour.until.wait(PATIENCE_S), "nobody released a request"
                behaviour = behaviour.then
        finally:
            fake.change_counts(in_flight=-1)
        self._respond(behaviour)
        fake.change_counts(answered=1)

    def _respond(self, behaviour: Say | Refuse | Raw | Flood | Drop) -> None:
        match behaviour:
            case Say():
                n_prompt, n_completion = behaviour.usage or (0, 0)
                self.server.fake.change_counts(
                    prompt_tokens=n_prompt, completion_tokens=n_completion
                )
                self._send(
                    200, json.dumps(_completion_to_json(self.server.fake.model, behaviour)).encode()
                )
            case Refuse(status, message, code, kind, headers):
                error = {"message": message, "type": kind, "param": None, "code": code}
                self._send(status, json.dumps({"error": error}).encode(), headers)
            case Raw(body, content_type, headers, status):
                self._send(status, body, {"Content-Type": content_type, **headers})
            case Flood(n_bytes, status, headers):
                self._send(status, b"", {"Content-Length": str(n_bytes), **headers})
                for _ in range(n_bytes >> 16):
                    self.wfile.write(bytes(1 << 16))
            case Drop():
                self._send(200, b'{"id": "chat', {"Content-Length": "1000"})
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        defaults = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in (defaults | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _completion_to_json(model: str, say: Say) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.text, "refusal": None}
    if say.tool_calls:
        message["tool_calls"] = list(say.tool_calls)
    if say.reasoning is not None:
        message["reasoning_content"] = say.reasoning
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": say.finish_reason,
    }
    completion: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
    }
    if say.usage is not None:
        n_prompt, n_completion = say.usage
        completion["usage"] = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
        }
    return completion


def _is_number_between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    )


def _is_count_from(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= low


_FIELDS: dict[str, set[str]] = {
    "system": set(),
    "user": set(),
    "assistant": {"tool_calls"},
    "tool": {"tool_call_id"},
}
"""Fields of a message besides role and content."""


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return False
    more = _FIELDS.get(message.get("role", ""))
    calls = message.get("tool_calls", [{"function": {"arguments": "{}"}}])
    return (
        more is not None
        and set(message) - {"role", "content"} <= more
        and ("tool_call_id" in message) == (message["role"] == "tool")
        and isinstance(calls, list)
        and calls != []
        and all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
    )


def _answers_its_calls(messages: list[dict[str, Any]]) -> bool:
    """Return True if each call is answered at once, as servers demand."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return False
        open_calls += [call["id"] for call in message.get("tool_calls", [])]
    return not open_calls


def _is_tool(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and set(tool) == {"type", "function"}
        and tool["type"] == "function"
        and isinstance(tool["function"].get("name"), str)
        and set(tool["function"]) <= {"name", "description", "parameters", "strict"}
    )


_SCHEMA: dict[str, Callable[[Any], bool]] = {
    "model": lambda value: isinstance(value, str) and value != "",
    "messages": lambda value: (
        isinstance(value, list)
        and value != []
        and all(_is_message(each) for each in value)
        and _answers_its_calls(value)
    ),
    "temperature": _is_number_between(0, 2),
    "max_tokens": _is_count_from(1),
    "max_completion_tokens": _is_count_from(1),
    "stream": lambda value: value is False,
    "logprobs": lambda value: isinstance(value, bool),
    "top_logprobs": lambda value: type(value) is int and 0 <= value <= 20,
    "tools": lambda value: isinstance(value, list) and all(_is_tool(each) for each in value),
}


def _find_problem(body: dict[str, Any]) -> str:
    """What of a request is not in the schema, or ""."""
    if missing := {"model", "messages"} - set(body):
        return f"missing: {sorted(missing)}"
    if {"max_tokens", "max_completion_tokens"} <= set(body):
        return "two limits"
    for name, value in body.items():
        if name not in _SCHEMA:
            return f"unknown field {name!r}"
        if not _SCHEMA[name](value):
            return f"{name} is {value!r}"
    return ""
