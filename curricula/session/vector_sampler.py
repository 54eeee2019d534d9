"""A curriculum around many envs at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Curriculum, Evolver, Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.guiding.guided_episode import GuidedEpisode
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.guiding.method_parts import MethodParts
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.curricula.session.stream import (
    DEFAULT_EVERY,
    EvolveMode,
    TaskStream,
    require_reason,
    require_train_env,
    session_of,
)
from coevo_gym.envs.vector import TaskVectorEnv


class EvolvingVectorSampler(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """:class:`~coevo_gym.curricula.session.sampler.EvolvingTaskSampler` for a vector env of ours.

    Each reset of an env, explicit or automatic, begins the curriculum's next episode there; the K
    episodes of a task may run side by side and end in any order. Envs that ``options["tasks"]``
    names a task for run it unrecorded.

    Args:
        env: a :class:`~coevo_gym.envs.vector.TaskVectorEnv`, as from ``gym.make_vec``, on the
            training split.
        curriculum: name of a method, whose curriculum it takes, or a curriculum object; None for
            the method that a run is about by default (CoEvolve).
        group_size: K, episodes of each task.
        groups_per_step: groups that your trainer learns from before its policy changes: their
            tasks are drawn at once, and their groups are recorded as one batch. 1 records each
            group as it closes.
        evolve: ``"inline"`` or ``"manual"``; see :meth:`evolve`.
        evolve_every_groups: groups between two rounds, for the name of a method.
        seed: seed of the whole stream of tasks, rounds and episodes.
        evolver: carries out rounds; None explores without a model.
        session: a session to practise, which other samplers and threads may practise too, or
            one who passes calls on to it, from any process. It says all of the above but
            ``evolve``. None makes one.
        method: a method's parts, as for the other sampler.

    Raises:
        SplitLeakError: if an env is not on the training split.
        ConfigError: if the vector env is not one of ours, or an argument is not usable.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        curriculum: Curriculum | str | None = None,
        *,
        group_size: int = 8,
        groups_per_step: int = 1,
        evolve: EvolveMode = "inline",
        evolve_every_groups: int = DEFAULT_EVERY,
        seed: int = 0,
        evolver: Evolver | None = None,
        session: SessionFace | None = None,
        method: MethodParts | None = None,
    ) -> None:
        super().__init__(env)
        if not isinstance(env.unwrapped, TaskVectorEnv):
            raise ConfigError(
                f"EvolvingVectorSampler needs a TaskVectorEnv, actual: "
                f"{type(env.unwrapped).__name__}. Make one with gym.make_vec('CoEvolve-…-v0')."
            )
        self._envs = env.unwrapped
        bare = [require_train_env(self._envs.unwrapped_env(i)) for i in range(env.num_envs)]
        session = session_of(
            bare[0],
            session,
            curriculum,
            group_size=group_size,
            groups_per_step=groups_per_step,
            evolve_every_groups=evolve_every_groups,
            seed=seed,
            evolver=evolver,
            method=method,
        )
        self._stream = TaskStream(session, evolve, method=method)
        self._tickets: list[Ticket | None] = [None] * env.num_envs
        self._guided: list[GuidedEpisode | None] = [None] * env.num_envs

    @property
    def curriculum(self) -> Curriculum:
        """What decides on the tasks, of a session in this process."""
        return self.session.curriculum

    @property
    def session(self) -> CurriculumSession:
        """What gives out the tasks and takes the episodes in.

        One that is elsewhere has those of its members that ``SessionFace`` names.
        """
        return cast(CurriculumSession, self._stream.session)

    @property
    def ledger(self) -> CurriculumSession:
        """The session, under its earlier name."""
        return self.session

    @property
    def guiding(self) -> Guiding | None:
        """The method's coach, studies and memories at work; None without a method."""
        return self._stream.guiding

    @property
    def notes(self) -> Notes:
        """What the method's studies have noted about the groups of the latest step that is over."""
        return self._stream.notes

    @property
    def tickets(self) -> tuple[Ticket | None, ...]:
        """The ticket of each env's running episode; None where there is none."""
        return tuple(self._tickets)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode in all envs, or in those of ``options["reset_mask"]``.

        Args:
            seed: passed on; None for seeds that the stream derives.
            options: ``"reset_mask"`` and ``"tasks"`` as in ``TaskVectorEnv.reset``; an env that
                ``"tasks"`` names a task for is not recorded.
        """
        options = dict(options or {})
        mask = options.get("reset_mask")
        chosen = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        tasks = list(options.get("tasks") or [None] * self.num_envs)
        seeds: list[int | None] = [None] * self.num_envs
        for index in chosen:
            self._settle(index)
            self._guided[index] = None
        with self._begin(index for index in chosen if tasks[index] is None) as begun:
            for index, ticket in begun.items():
                tasks[index], seeds[index] = ticket.task, self._stream.seed_of(ticket)
            observations, infos = self.env.reset(
                seed=cast(Any, seeds if seed is None else seed), options={**options, "tasks": tasks}
            )
            return self._shown(observations, infos, begun), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs; the ends of episodes are recorded."""
        resets = self._envs.autoreset_mode is AutoresetMode.NEXT_STEP
        with self._begin(np.flatnonzero(self._envs.over).tolist() if resets else ()) as begun:
            for index, ticket in begun.items():
                self._envs.next_tasks[index] = ticket.task
            observations, rewards, terminated, truncated, infos = self.env.step(actions)
            observations = self._shown(observations, infos, range(self.num_envs))
        for index in np.flatnonzero(self._envs.over).tolist():
            ended, self._tickets[index] = self._tickets[index], None
            if ended is not None:
                self._stream.report(ended, self._envs.unwrapped_env(index), self._guided[index])
        self._stream.renew([ticket for ticket in self._tickets if ticket is not None])
        return observations, rewards, terminated, truncated, infos

    def cut(self, reason: EndReason, mask: NDArray[np.bool_] | None = None) -> None:
        """End episodes here, because their agents cannot go on; they are graded and recorded.

        Args:
            reason: why.
            mask: (num_envs,) True where; None for all that run.

        Raises:
            ConfigError: if ``reason`` says nothing about the agent.
            ResetNeeded: if an env of the mask has no running episode.
            EnvBackendError: if an engine fails. Its episode is given back then.
        """
        require_reason(reason)
        for index in np.flatnonzero(~self._envs.over if mask is None else mask).tolist():
            ended, self._tickets[index] = self._tickets[index], None
            try:
                self._envs.cut(index, reason)
            finally:
                if ended is not None:
                    self._stream.report(ended, self._envs.unwrapped_env(index), self._guided[index])

    def abandon(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Give episodes back: they are run again, and count as nothing.

        The envs may still be stepped, unrecorded.

        Args:
            mask: (num_envs,) True where; None for all.
        """
        for index in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            self._give_back(index)

    def close(self, **kwargs: Any) -> None:
        """Give the running episodes back and close the envs; twice is fine."""
        self.abandon()
        super().close(**kwargs)

    def evolve(self) -> RoundResult | None:
        """Run the round of evolution that is due; None if none is."""
        return self._stream.evolve()

    def state_dict(self) -> dict[str, Any]:
        """The whole stream as JSON; the episodes under way will be run again."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the stream of :meth:`state_dict`; call ``reset()`` next."""
        self._stream.load_state_dict(state)
        self._tickets = [None] * self.num_envs
        self._guided = [None] * self.num_envs

    @contextmanager
    def _begin(self, indices: Iterable[int]) -> Iterator[dict[int, Ticket]]:
        """Tickets for the episodes that a reset or a step begins; given back if it does not."""
        begun: dict[int, Ticket] = {}
        try:
            for index in indices:
                self._settle(index)
                self._tickets[index] = begun[index] = self._stream.take()
            for index, guided in zip(begun, self._stream.guide([*begun.values()]), strict=True):
                self._guided[index] = guided
            yield begun
        except BaseException:
            for index in begun:
                self._give_back(index)
            raise

    def _settle(self, index: int) -> None:
        """Take in the episode of an env that is about to be reset."""
        ended, self._tickets[index] = self._tickets[index], None
        if ended is not None:
            self._stream.settle(ended, self._envs.unwrapped_env(index), self._guided[index])

    def _shown(self, observations: Any, infos: dict[str, Any], looked: Iterable[int]) -> Any:
        """The observations as they are shown; what is told goes into the infos.

        Args:
            observations: those of the envs.
            infos: of the envs that have begun or taken a step.
            looked: those of them whose episodes may be guided.
        """
        shown = {}
        for index in looked:
            if (guided := self._guided[index]) is not None:
                _, told = guided.look(self._envs.unwrapped_env(index), observations[index], {})
                self._envs._add_info(infos, told, index)
        for index, guided in enumerate(self._guided):
            if guided is not None and guided.changes:
                shown[index] = guided.observation
        if not shown:
            return observations
        return tuple(shown.get(index, own) for index, own in enumerate(observations))

    def _give_back(self, index: int) -> None:
        ticket, self._tickets[index] = self._tickets[index], None
        if ticket is not None:
            self._stream.give_back(ticket, EndReason.ABANDONED)
