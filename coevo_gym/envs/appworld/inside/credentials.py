"""What proves to the apps who one is: nobody can work it out, one has to be given it.

The stock engine signs access tokens with a key that everybody knows, and draws its codes from
random numbers of a known seed: code could act for other people. Here a token counts only if it was
given out in this world, so a forged one is refused whatever its signature, and a token reads as in
the stock engine, the same in every run. A code, which is told to its owner alone, is as good as its
randomness: it differs from run to run.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from appworld.apps import api_lib, get_all_apps
from appworld.common.utils import import_apis_module

_CODE_DIGITS = 7


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

    def _give(self, **claims: Any) -> str:
        token: str = self._make(**claims)
        self._given.add(token)
        return token

    def _accept(self, token: str) -> Any:
        if token not in self._given:
            raise self._manager.not_authenticated_exception
        return self._read(token)


def guard() -> tuple[Tokens, ...]:
    """Put what is here in the place of what all apps have; returns the tokens of each."""
    managers = (getattr(import_apis_module(app), "logging_manager", None) for app in get_all_apps())
    tokens = tuple(Tokens(manager) for manager in managers if manager is not None)
    draw = api_lib.get_unique_id

    def code(num_characters: int = _CODE_DIGITS) -> str:
        """A code to verify an account or to reset a password; other numbers are longer."""
        drawn: str = draw(num_characters)  # what is drawn after it is the same as ever
        return token_hex()[:_CODE_DIGITS] if num_characters == _CODE_DIGITS else drawn

    api_lib.get_unique_id = code
    return tokens
