"""The coach that tells experiences to some rollouts of each group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coevo_gym.core.advice import advised
from coevo_gym.core.seams import Guidance, Ticket
from coevo_gym.core.trajectory import Cue
from coevo_gym.methods.agentevolver.pool import ExperiencePool
from coevo_gym.prompts.cue import load_cue

_TOLERANCE = 1e-9
_MARK = "exp:"
_PROMPT = "agentevolver/experiences"


def places(size: int, share: float) -> tuple[int, ...]:
    """Return the positions in a group of the rollouts that are told experiences, spread evenly.

    Args:
        size: K, rollouts in a group.
        share: share of them, in [0, 1]; their number is rounded down.

    Example:
        >>> places(8, 0.5), places(7, 0.5)
        ((1, 3, 5, 7), (2, 4, 6))

    Source: AgentEvolver (arXiv 2511.10395), Eq. 15; the order is ours.
    """
    n = math.floor(size * share + _TOLERANCE)
    return tuple(place for place in range(size) if (place + 1) * n // size > place * n // size)


def told_ids(cue_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the experiences that a rollout with these cues was told.

    Example:
        >>> told_ids(("time", "exp:a1,b2"))
        ('a1', 'b2')
    """
    return advised([id for id in cue_ids if id.startswith(_MARK)])


class ExperienceCoach:
    """A coach that tells some rollouts of each group the experiences that fit the task.

    One cue before the first message holds the experiences; training texts omit the cue. There is no
    cue where no experience fits, or while the pool is built. The search uses only the instruction,
    so neither verifier nor solution can influence the cue.

    Args:
        pool: the pool to search.
        group_size: K, rollouts in a group.
        share: share of a group's rollouts that are told experiences, rounded down.
        k: maximum experiences in a cue.
        least: least cosine of an instruction and ``when_to_use``.
        build_steps: steps of the learner in which the pool is built, and no experience is told.

    Source: AgentEvolver (arXiv 2511.10395), section 4.2 and Eq. 14 and 15.
    """

    def __init__(
        self,
        pool: ExperiencePool,
        *,
        group_size: int,
        share: float = 0.5,
        k: int = 5,
        least: float = 0.3,
        build_steps: int = 0,
    ) -> None:
        self._pool, self._k, self._least = pool, k, least
        self._places = frozenset(places(group_size, share))
        self._build_steps = build_steps
        self._prompt = load_cue(_PROMPT)

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the guidance of an episode; see :class:`~coevo_gym.core.seams.Coach`."""
        if self._pool.steps < self._build_steps:
            return [Guidance()] * len(tickets)
        asked = {t.task.instruction for t in tickets if t.index in self._places}
        found = {instruction: self._guidance(instruction) for instruction in sorted(asked)}
        return [
            found[ticket.task.instruction] if ticket.index in self._places else Guidance()
            for ticket in tickets
        ]

    def _guidance(self, instruction: str) -> Guidance:
        experiences = self._pool.retrieve(instruction, k=self._k, least=self._least)
        if not experiences:
            return Guidance()
        texts = [{"when_to_use": e.when_to_use, "content": e.content} for e in experiences]
        text = self._prompt.write({"experiences": texts})
        id = _MARK + ",".join(experience.id for experience in experiences)
        return Guidance(cues=(Cue(text, "first", id, strip=True),))
