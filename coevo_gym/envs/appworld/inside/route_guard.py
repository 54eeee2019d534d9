"""Guards that check each app request's route and limit its resource use."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from time import process_time
from typing import Any

import orjson
from appworld.requester import METHOD_NOT_ALLOWED_MESSAGE
from sqlalchemy import event
from sqlalchemy.engine import Engine
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Mount

_FIELD = re.compile(r"{(\w+)}")
_UNFIT = re.compile(r"[/\\?#%{}\x00-\x1f\x7f]|\A\.{0,2}\Z")


class RouteGuard:
    """A guard that rejects a request if it is routed to an API other than the one called.

    The stock engine inserts arguments into the address, which may then lead to another API, for
    example one that sets the clock, the databases or a card's balance. Therefore the final address
    is resolved in the same way as the apps resolve it.

    Args:
        apps: the application that all apps are mounted on.
    """

    def __init__(self, apps: Any) -> None:
        self._routes = apps.routes
        self._inside = apps.middleware_stack or apps.build_middleware_stack()
        self._asked: Callable[..., Any] | None = None
        apps.middleware_stack = self

    @contextmanager
    def allow_only(self, api: Callable[..., Any]) -> Iterator[None]:
        """Forward requests to the given API, and no others, until the ``with`` block ends."""
        self._asked = api
        try:
            yield
        finally:
            self._asked = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward an ASGI request if it is allowed; otherwise, respond with status 405."""
        if (
            scope["type"] == "lifespan"
            or find_endpoint(self._routes, scope) is self._asked is not None
        ):
            await self._inside(scope, receive, send)
        else:
            refusal = PlainTextResponse("Method Not Allowed", status_code=405)
            await refusal(scope, receive, send)


def find_endpoint(routes: Sequence[Any], scope: Mapping[str, Any]) -> Any:
    """Return the function that would handle the request, or None."""
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            inner = isinstance(route, Mount)
            return find_endpoint(route.routes, {**scope, **child}) if inner else child["endpoint"]
    return None


def check_path(path: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error if an argument could make the URL point to another API.

    Args:
        path: the API's address, with a field in braces for each argument that is part of it.
        arguments: the arguments as passed.

    Raises:
        Exception: the same as the stock engine's for an unknown address.
    """
    for field in _FIELD.findall(path):
        if field in arguments and _UNFIT.search(str(arguments[field])):
            raise Exception(f"Response status code is 405:\n{METHOD_NOT_ALLOWED_MESSAGE}")


def json_size(arguments: Mapping[str, Any]) -> int:
    """Return the size of the arguments in bytes.

    Raises:
        Exception: the same as the stock engine's for a value of a wrong type, if they contain
            values that the apps could store but not return: numbers that are not finite or exceed
            64 bits, lone surrogates, endlessly nested lists.
    """
    try:
        json.dumps(arguments, allow_nan=False)
        return len(orjson.dumps(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        message = orjson.dumps({"message": f"Validation error. Reason: \n{error}"}).decode()
        raise Exception(f"Response status code is 422:\n{message}") from error


class OutOfTimeError(BaseException):
    """Raised by :func:`limit_cpu_time` when the CPU time is used up.

    It does not derive from ``Exception``, which the stock engine treats as a syntax error.
    """


@contextmanager
def limit_cpu_time(limit_s: float) -> Iterator[None]:
    """Limit the CPU time of the ``with`` block, which must run Python code in the main thread.

    Raises:
        OutOfTimeError: if the block has taken ``limit_s`` seconds.
    """

    def stop(*_: Any) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Effort:
    """A limit on a call's CPU time. It takes effect at the call's next database query.

    Some APIs, such as copying a folder into itself, can be made to work for hours, during which the
    process ignores commands. The limit counts processor time, which does not depend on the load of
    the machine and also passes while the clock is frozen.
    """

    def __init__(self) -> None:
        self._limit_s = self._until_s = inf
        event.listen(Engine, "before_cursor_execute", self._check_time)

    @contextmanager
    def limit(self, limit_s: float) -> Iterator[None]:
        """Limit the CPU time of the ``with`` block to ``limit_s`` seconds."""
        self._limit_s, self._until_s = limit_s, process_time() + limit_s
        try:
            yield
        finally:
            self._until_s = inf

    def _check_time(self, *_: Any) -> None:
        if process_time() > self._until_s:
            raise Exception(f"The call was stopped after {self._limit_s:g} seconds.")
