"""When a loop carries out rounds: at once, or beside training while the learner goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coevo_gym.core.evolution import Round
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.trainers.parts import Landings

_PATIENCE_S = 0.2
"""So often somebody who waits for a round is asked whether to stop."""


class LoopRounds:
    """Says at each step boundary which round is to be run and applied now, if any.

    Without ``landings`` that is the one that is due. With them it is launched instead, one at a
    time, and applied at the first boundary after it is done. Which one that is depends on how fast
    everything was, so it is remembered before the round is applied. In a run that is resumed or
    replayed the round is applied at that very boundary, and waited for if need be: the same tasks
    are practised.

    Args:
        landings: remembers; None to wait for each round.
    """

    def __init__(self, landings: Landings | None) -> None:
        self.landings = landings
        self._was_flying = False

    def first(self, session: CurriculumSession, step: int) -> Round | None:
        """Of a loop that begins, or goes on: what an earlier life had under way flies again.

        A curriculum without tasks looks for its first ones, and nothing can go on meanwhile.
        """
        if step == 0:
            return session.plan()
        return self.asked(session) if self._was_flying else None

    def asked(self, session: CurriculumSession) -> Round | None:
        """The round that is due; where rounds run beside training it is launched instead."""
        round = session.plan()
        if round is None or self.landings is None:
            return round
        session.launch_round(round)
        return None

    def landing(
        self,
        session: CurriculumSession,
        step: int,
        should_stop: Callable[[], bool],
        *,
        wait: bool = False,
    ) -> Round | None:
        """The round that was launched and is to be applied at this boundary.

        It may have to be waited for. Who is asked to stop meanwhile waits no longer.

        Args:
            session: runs and applies rounds.
            step: number of steps done.
            should_stop: whether to wait no longer.
            wait: whether the loop goes no further, so that this is the last boundary.
        """
        round = session.round_under_way
        if round is None or self.landings is None:
            return None
        then = self.landings.step_of(round)
        if wait or (then is not None and step >= then):
            while not session.round_done(_PATIENCE_S) and not should_stop():
                pass
        elif then is not None:
            return None
        if not session.round_done():
            return None
        self.landings.remember(round, step)
        return round

    def state_dict(self, session: CurriculumSession) -> dict[str, Any]:
        """Whether a round is under way; which one the curriculum knows."""
        return {"flying": session.evolving}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, also one from before rounds ran beside training."""
        self._was_flying = state.get("flying", False)
