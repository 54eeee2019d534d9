"""Seeds for all randomness of a session."""

from __future__ import annotations

import zlib
from typing import NamedTuple, Self

from numpy.random import SeedSequence

from coevo_gym.core.seams import Ticket


class Seeds(NamedTuple):
    """Seeds for the parts of a session.

    Attributes:
        draws: seed of the generator for drawing tasks.
        rounds: seed of the generator for planning rounds.
        episodes: seed for the envs of episodes.
    """

    draws: int | SeedSequence
    rounds: int | SeedSequence
    episodes: int = 0

    @classmethod
    def of(cls, seed: int) -> Self:
        """Create all three seeds from one."""
        draws, rounds = SeedSequence(seed, spawn_key=(0,)), SeedSequence(seed, spawn_key=(1,))
        return cls(draws, rounds, seed)

    def of_episode(self, ticket: Ticket) -> int:
        """Return the seed of a ticket's env, a function of ``episodes``, group and place only."""
        return zlib.crc32(f"{self.episodes}/{ticket.group_id}/{ticket.index}".encode())
