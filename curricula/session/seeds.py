"""Where the randomness of a session comes from."""

from __future__ import annotations

import zlib
from typing import NamedTuple, Self

from numpy.random import SeedSequence

from coevo_gym.core.seams import Ticket


class Seeds(NamedTuple):
    """One seed for each part of a session.

    Attributes:
        draws: of the generator that tasks are drawn with.
        rounds: of the generator that rounds are planned with.
        episodes: of the episodes' envs.
    """

    draws: int | SeedSequence
    rounds: int | SeedSequence
    episodes: int = 0

    @classmethod
    def of(cls, seed: int) -> Self:
        """All three from one."""
        draws, rounds = SeedSequence(seed, spawn_key=(0,)), SeedSequence(seed, spawn_key=(1,))
        return cls(draws, rounds, seed)

    def of_episode(self, ticket: Ticket) -> int:
        """Seed of a ticket's env: a function of ``episodes``, group and place alone."""
        return zlib.crc32(f"{self.episodes}/{ticket.group_id}/{ticket.index}".encode())
