"""How the episodes of the loop advance: in lock step, or as a stream that outlives its steps."""

from __future__ import annotations

from coevo_gym.core.seams import Agent
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.trainers.parts import Learner, LoopConfig, LoopState
from coevo_gym.trainers.rollouts.gathered import Gathered
from coevo_gym.trainers.rollouts.lock_step import gather
from coevo_gym.trainers.rollouts.stream import GroupStream


class Rollouts:
    """Gathers the groups of one step after the other.

    Args:
        config: ``rollout`` says how.
        guiding: what goes with each episode.
    """

    def __init__(self, config: LoopConfig, guiding: Guiding) -> None:
        self._config, self._guiding = config, guiding
        self._stream: GroupStream | None = None

    def gather(
        self,
        session: CurriculumSession,
        agent: Agent,
        envs: EnvPool,
        state: LoopState,
        learner: Learner,
    ) -> Gathered:
        """The groups of a step, recorded; see ``lock_step.gather`` and :class:`GroupStream`."""
        parts = (self._config, session, agent, envs, state, learner, self._guiding)
        if self._config.rollout == "lock_step":
            return gather(*parts)
        self._stream = self._stream or GroupStream(*parts)
        return self._stream.gather()

    def close(self) -> int:
        """End the episodes that go on beside steps, if there are any; they are to be run again.

        Returns:
            Env steps that they had taken; the loop's state has not counted them.
        """
        stream, self._stream = self._stream, None
        return 0 if stream is None else stream.close()
