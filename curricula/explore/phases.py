"""Phases of a walk: first in breadth, then in depth, each with its own view and its own cue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.trajectory import Cue, View


@dataclass(frozen=True)
class Phase:
    """A phase of a walk.

    Attributes:
        until: the number of steps after which the phase ends, counted from the start of the walk;
            None for the last phase.
        agent: the agent that acts, which also decides how much of the walk it sees.
        cue: text for the agent in this phase, besides the cues of the walk.
    """

    until: int | None
    agent: Agent
    cue: Cue


class PhasedAgent:
    """An agent that acts in phases, chosen by the number of steps that a walk has taken.

    It keeps no state, so walks in different phases can be under way at the same time. The agents of
    the phases are asked one after the other, each about all views in its phase.

    Args:
        phases: the phases in order; only the last has no end.
        identity: settings of the phases as JSON, to distinguish rounds that other phases explored.

    Raises:
        ValueError: if the phases are not in order.
    """

    def __init__(self, phases: Sequence[Phase], *, identity: Mapping[str, Any]) -> None:
        ends = [phase.until for phase in phases]
        rising = sorted({end for end in ends if end is not None})
        if ends != [*rising, None]:
            raise ValueError(
                f"Expects phases with rising ends, the last without an end, actual: {ends}"
            )
        self._phases, self.identity = tuple(phases), dict(identity)

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one act per view, in order."""
        of_phase: dict[int, list[int]] = {}
        for place, view in enumerate(views):
            of_phase.setdefault(self._phase_of(len(view.history)), []).append(place)
        acts: dict[int, Act] = {}
        for number, places in sorted(of_phase.items()):
            phase = self._phases[number]
            shown = [replace(views[p], cues=(*views[p].cues, phase.cue)) for p in places]
            acts.update(zip(places, phase.agent.act(shown), strict=True))
        return [acts[place] for place in range(len(views))]

    def _phase_of(self, step: int) -> int:
        ends = (phase.until for phase in self._phases)
        return next(n for n, end in enumerate(ends) if end is None or step < end)
