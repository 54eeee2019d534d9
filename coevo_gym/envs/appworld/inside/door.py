"""The door to the apps: which requests go in, and where they come out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from appworld.requester import METHOD_NOT_ALLOWED_MESSAGE
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Mount

_FIELD = re.compile(r"{(\w+)}")
_UNFIT = re.compile(r"[/\\?#%{}\x00-\x1f\x7f]|\A\.{0,2}\Z")


class Door:
    """Stands before the apps, and lets a request in that leads to the one API that is asked for.

    The stock engine pastes arguments into the address, which may then lead to another API, also to
    one that sets the clock, the databases or a card's balance. So the address is looked up as the
    apps themselves do it, in what has become of it at the very last.

    Args:
        apps: the application that all apps are mounted on.
    """

    def __init__(self, apps: Any) -> None:
        self._routes = apps.routes
        self._inside = apps.middleware_stack or apps.build_middleware_stack()
        self._asked: Callable[..., Any] | None = None
        apps.middleware_stack = self

    @contextmanager
    def open_to(self, api: Callable[..., Any]) -> Iterator[None]:
        """Let requests of this API in, and no others; before and after, nothing goes in."""
        self._asked = api
        try:
            yield
        finally:
            self._asked = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] == "lifespan" or endpoint(self._routes, scope) is self._asked is not None:
            await self._inside(scope, receive, send)
        else:
            refusal = PlainTextResponse("Method Not Allowed", status_code=405)
            await refusal(scope, receive, send)


def endpoint(routes: Sequence[Any], scope: Mapping[str, Any]) -> Any:
    """The function that would answer; None for none."""
    for route in routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            inner = isinstance(route, Mount)
            return endpoint(route.routes, {**scope, **found}) if inner else found["endpoint"]
    return None


def check_path(path: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would be more, or less, than a piece of the address.

    Args:
        path: the API's address, with a field in braces for each argument that is a piece of it.
        arguments: as they were given.

    Raises:
        Exception: as the stock engine does where an address leads nowhere.
    """
    for field in _FIELD.findall(path):
        if field in arguments and _UNFIT.search(str(arguments[field])):
            raise Exception(f"Response status code is 405:\n{METHOD_NOT_ALLOWED_MESSAGE}")


def size(arguments: Mapping[str, Any]) -> int:
    """How many bytes arguments take.

    Raises:
        Exception: as the stock engine does for a value of a wrong type, if they hold what the apps
            could keep but not tell: numbers that are not finite or beyond 64 bits, lone
            surrogates, lists in lists without end.
    """
    try:
        json.dumps(arguments, allow_nan=False)
        return len(orjson.dumps(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        told = orjson.dumps({"message": f"Validation error. Reason: \n{error}"}).decode()
        raise Exception(f"Response status code is 422:\n{told}") from error
