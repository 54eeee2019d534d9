"""What an attempt to escape is, and the comparison of its two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from coevo_gym.sandbox import Level

Seen = TypeVar("Seen")


def _everywhere(level: Level) -> bool:
    return True


@dataclass(frozen=True)
class Payload(Generic[Seen]):
    """One attempt.

    Attributes:
        name: short and unique, for reports and test ids.
        what: what it tries to do, in a few words.
        code: Python that tries it; what it may use is up to the set-up.
        sign: whether it worked, from what the set-up has seen.
        claimed: whether a level says that it stops it, see docs/sandbox.md.
    """

    name: str
    what: str
    code: str
    sign: Callable[[Seen], bool]
    claimed: Callable[[Level], bool] = _everywhere


class Attempt(NamedTuple):
    """What came of running a payload once: whether it worked, and what it said last."""

    worked: bool
    detail: str


class Setup(Protocol[Seen]):
    """Where payloads run."""

    def attempt(self, payload: Payload[Seen], *, protected: bool) -> Attempt:
        """Run a payload in a fresh process, with the sandbox on or off.

        Raises:
            EnvBackendError: if it could not be run at all, which proves nothing.
        """
        ...


class Verdict(StrEnum):
    """What the two runs of a payload show."""

    STOPPED = "stopped"
    GOT_THROUGH = "got through"
    NOT_CLAIMED = "not claimed here"
    NOT_APPLICABLE = "not applicable here"


class Row(NamedTuple):
    """The two runs of a payload, and whether the sandbox says that it stops it."""

    name: str
    what: str
    off: Attempt
    on: Attempt
    claimed: bool = True

    @property
    def verdict(self) -> Verdict:
        """An attempt that fails without the sandbox, too, says nothing about the sandbox."""
        if self.on.worked:
            return Verdict.GOT_THROUGH if self.claimed else Verdict.NOT_CLAIMED
        return Verdict.STOPPED if self.off.worked else Verdict.NOT_APPLICABLE


class Suite(NamedTuple):
    """Payloads, and the set-up that they are for.

    Attributes:
        name: whose they are.
        payloads: the attempts.
        setup: makes the set-up for a level of isolation.
    """

    name: str
    payloads: tuple[Payload[Any], ...]
    setup: Callable[[Level], AbstractContextManager[Setup[Any]]]


def compare(payloads: Iterable[Payload[Seen]], setup: Setup[Seen], level: Level) -> Iterator[Row]:
    """Run each payload with the sandbox off, then on.

    Args:
        payloads: the attempts.
        setup: where they run.
        level: the level of isolation that the set-up was made for.
    """
    for payload in payloads:
        off, on = (setup.attempt(payload, protected=protected) for protected in (False, True))
        yield Row(payload.name, payload.what, off, on, payload.claimed(level))
