"""A server through which processes of a trainer use the session in the process that owns it.

A trainer may send a plug to a process that samples. A copy of the session there would be another
curriculum, so the plug sends the address of the owner instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing import current_process
from multiprocessing.managers import BaseManager
from threading import Thread
from typing import Any, NamedTuple, cast

from coevo_gym.curricula.session.session_calls import TaskSession

_PROPERTIES = ("lease_s", "evolving", "counts", "outstanding")
Address = str | tuple[str, int]


class Owner(NamedTuple):
    """The part of a plug that other processes use.

    Attributes:
        session: the session.
        version: returns the policy version.
    """

    session: TaskSession
    version: Callable[[], int]

    def read(self, name: str) -> Any:
        """Return a property of the session."""
        return getattr(self.session, name)

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the session."""
        return getattr(self.session, name)(*arguments, **keywords)

    def current_version(self) -> int:
        """Return the policy version."""
        return self.version()


class _Manager(BaseManager):
    """A manager with one object, an :class:`Owner`. Only child processes know its key."""


def serve(owner: Owner) -> Address:
    """Serve an owner from a thread of this process, and return the address."""
    manager = _manager(None)
    manager.register("owner", lambda: owner, exposed=("read", "call", "current_version"))
    server = manager.get_server()
    Thread(target=server.serve_forever, name="coevo-owner", daemon=True).start()
    return cast(Address, server.address)


def connect(address: Address) -> tuple[TaskSession, Callable[[], int]]:
    """Return the session of the owner at an address, and a function for its policy version."""
    manager = _manager(address)
    manager.register("owner", exposed=("read", "call", "current_version"))
    manager.connect()
    owner = cast(Any, manager).owner()
    return cast(TaskSession, _OwnedSession(owner)), owner.current_version


def _manager(address: Address | None) -> _Manager:
    kind = type("_Manager", (_Manager,), {})  # with a registry of its own
    manager: _Manager = kind(address=address, authkey=bytes(current_process().authkey))
    return manager


class _OwnedSession:
    """A session in another process; see ``TaskSession``."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return self._owner.read(name)
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._owner.call, name)
