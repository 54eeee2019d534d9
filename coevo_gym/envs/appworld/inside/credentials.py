"""What proves to the apps who one is: nobody can work it out, one has to be given it.

The stock engine signs access tokens with a key that everybody knows, and draws its codes from
random numbers of a known seed: code could act for other people. Here a token counts only if it was
given out in this world, so a forged one is refused whatever its signature, and a token reads as in
the stock engine, the same in every run. A code, which is told to its owner alone, is as good as its
randomness: it differs from run to run.

The companies that send codes and receipts have accounts of their own, all with one password that
everybody knows too; whoever reads their mail knows everybody's codes. Only the engine itself logs
in as one of them, and it gives itself tokens that nobody can work out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from appworld.apps import api_lib, get_all_apps
from appworld.common.utils import import_apis_module

_CODE_DIGITS = 7


class _Inside:
    """Whether the engine itself is logging somebody in."""

    open = False

    @classmethod
    @contextmanager
    def entered(cls) -> Iterator[None]:
        """It is, within this block."""
        cls.open = True
        try:
            yield
        finally:
            cls.open = False


class Tokens:
    """The access tokens of one app.

    Args:
        manager: the app's own, which makes and reads them; it asks here from now on.
    """

    def __init__(self, manager: Any) -> None:
        self._make = manager.create_access_token
        self._read = manager._get_payload
        self._manager = manager
        self._given: set[str] = set()
        manager.create_access_token = self._give
        manager._get_payload = self._accept

    def forget(self) -> None:
        """Begin anew: no token has been given out, and none has been logged out."""
        self._given.clear()
        self._manager.blacklisted_tokens.clear()

    def _give(self, *, data: dict[str, Any], **more: Any) -> str:
        if _Inside.open:
            data = {**data, "jti": token_hex()}
        token: str = self._make(data=data, **more)
        self._given.add(token)
        return token

    def _accept(self, token: str) -> Any:
        if token not in self._given:
            raise self._manager.not_authenticated_exception
        return self._read(token)


def guard() -> tuple[Tokens, ...]:
    """Put what is here in the place of what all apps have; returns the tokens of each."""
    modules = [import_apis_module(app) for app in get_all_apps()]
    managers = (getattr(module, "logging_manager", None) for module in modules)
    tokens = tuple(Tokens(manager) for manager in managers if manager is not None)
    for module in modules:
        if hasattr(module, "_login"):
            module._login = _closed_to_companies(module._login)
    log_in = api_lib.access_token_from

    def access_token_from(*arguments: Any, **named: Any) -> Any:
        """What the engine uses to act for a company."""
        with _Inside.entered():
            return log_in(*arguments, **named)

    api_lib.access_token_from = access_token_from
    draw = api_lib.get_unique_id

    def code(num_characters: int = _CODE_DIGITS) -> str:
        """A code to verify an account or to reset a password; other numbers are longer."""
        drawn: str = draw(num_characters)  # what is drawn after it is the same as ever
        return token_hex()[:_CODE_DIGITS] if num_characters == _CODE_DIGITS else drawn

    api_lib.get_unique_id = code
    return tokens


def _closed_to_companies(log_in: Callable[..., Any]) -> Callable[..., Any]:
    """A login that the companies' password does not open from outside."""
    known = api_lib.CompanyNotifier("").password

    def login(*, data: Any, **named: Any) -> Any:
        if data.password == known and not _Inside.open:
            raise api_lib.InvalidCredentialsException
        return log_in(data=data, **named)

    return login
