"""A curriculum as a Gymnasium wrapper: plug it around an env, train as before."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from coevo_gym.core.errors import ConfigError, EnvBackendError
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
from coevo_gym.envs.base import TaskEnv


class EvolvingTaskSampler(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Choose the task of each episode, learn from how it went, and let the task set evolve.

    ``reset()`` begins the next episode of the curriculum, each task ``group_size`` times in a row;
    the episode's end is recorded by itself. A ``reset()`` after at least one step means that
    somebody outside ended the episode, such as a TimeLimit around the sampler: it is graded as it
    stands and recorded, ``end_reason`` ``time_limit``. One before any step, :meth:`abandon` and
    :meth:`close` give the episode back: it is run again and counts as nothing.
    ``reset(options={"task": …})`` (or ``"task_id"``) runs that task unrecorded. Success is the
    env's own outcome, whatever reward wrappers make of it.

    Wrap one env in the main process. For many envs at once, use ``EvolvingVectorSampler``.

    Args:
        env: an env of coevo_gym on its training split, wrapped or not.
        curriculum: name of a method, whose curriculum it takes, or a curriculum object; None for
            the method that a run is about by default (CoEvolve).
        group_size: K, how often each task is run in a row.
        groups_per_step: groups that your trainer learns from before its policy changes: their
            tasks are drawn at once, and their groups are recorded as one batch. 1 records each
            group as it closes.
        evolve: ``"inline"`` runs a round of evolution inside the ``reset()`` at which it is due
            (the first one makes the first tasks); ``"manual"`` leaves that to :meth:`evolve`.
        evolve_every_groups: groups between two rounds, for the name of a method.
        seed: seed of the whole stream of tasks, rounds and episodes.
        evolver: carries out rounds; None explores without a model.
        session: a session to practise, which other samplers and threads may practise too, or
            one who passes calls on to it, from any process. It says all of the above but
            ``evolve``. None makes one.
        method: a method's parts, such as a ``Method``, whose curriculum and evolver are practised.
            Its coach says through which interface observations and the texts of info are shown, and
            which cues stand in ``info["cues"]``; its studies read each group that closes, and its
            curriculum and memories are told once in ``groups_per_step`` groups. Its credit and its
            learner are for your trainer. None shows the env as it is.

    Raises:
        SplitLeakError: if the env is not on the training split.
        ConfigError: if it is built in a child process, or an argument is not usable.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = EvolvingTaskSampler(gym.make("CoEvolve-WebShop-v0"), evolve="manual")
        >>> env.curriculum.metrics()["pool_size"]
        0.0
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
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
        named = isinstance(curriculum, str | None)
        self._has_json_spec = named and (evolver, session, method) == (None, None, None)
        if self._has_json_spec:
            RecordConstructorArgs.__init__(
                self,
                curriculum=curriculum,
                group_size=group_size,
                groups_per_step=groups_per_step,
                evolve=evolve,
                evolve_every_groups=evolve_every_groups,
                seed=seed,
            )
        gym.Wrapper.__init__(self, env)
        shared = session is not None and not isinstance(session, CurriculumSession)
        if multiprocessing.parent_process() is not None and not shared:
            raise ConfigError(
                "EvolvingTaskSampler was built in a child process, where it could not see the "
                "episodes of its siblings. Wrap the vector env in the main process with "
                "EvolvingVectorSampler instead, or pass session= one who passes calls on to a "
                "session elsewhere, such as a RaySession."
            )
        session = session_of(
            require_train_env(env.unwrapped),
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
        self._ticket: Ticket | None = None
        self._guided: GuidedEpisode | None = None

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The env's spec with this wrapper in it; None if an object was passed to it."""
        return super().spec if self._has_json_spec else None

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
    def ticket(self) -> Ticket | None:
        """The ticket of the running episode; None between episodes, or if it is not recorded."""
        return self._ticket

    @property
    def guiding(self) -> Guiding | None:
        """The method's coach, studies and memories at work; None without a method."""
        return self._stream.guiding

    @property
    def notes(self) -> Notes:
        """What the method's studies have noted about the groups of the latest step that is over."""
        return self._stream.notes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode.

        Args:
            seed: passed on to the env; None for one that the stream derives.
            options: ``"slot"`` names where the copies of one row meet, and ``"policy_version"``
                the version of the policy that is about to act (see ``CurriculumSession.take``).
                All else is passed on to the env; with a ``"task"`` or ``"task_id"``, the episode
                is not recorded.

        Raises:
            ConfigError: if there is no task yet.
            TaskError: if there is no ticket now, because others have taken those of an open step.
        """
        if self._ticket is not None:
            ended, self._ticket = self._ticket, None
            self._stream.settle(ended, self._bare, self._guided)
        self._guided = None
        options = dict(options or {})
        wanted = {key: options.pop(key) for key in ("slot", "policy_version") if key in options}
        if options.keys() & {"task", "task_id"}:
            return self.env.reset(seed=seed, options=options)
        ticket = self._stream.take(**wanted)
        seed = self._stream.seed_of(ticket) if seed is None else seed
        try:
            (guided,) = self._stream.guide([ticket])
            begun = self.env.reset(seed=seed, options={**options, "task": ticket.task})
            if guided is not None:
                begun = guided.look(self._bare, *begun)
        except BaseException as error:
            lost = isinstance(error, EnvBackendError)
            self._stream.give_back(ticket, EndReason.WORKER_LOST if lost else EndReason.ABANDONED)
            raise
        self._ticket, self._guided = ticket, guided
        return begun

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; the end of an episode is recorded."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            with self._reported():
                info = self._bare.end_from_outside(info)
        elif self._ticket is not None:
            self._stream.renew([self._ticket])
        if self._guided is not None:
            observation, info = self._guided.look(self._bare, observation, info)
        return observation, reward, terminated, truncated, info

    def cut(self, reason: EndReason) -> None:
        """End the running episode here, because its agent cannot go on.

        It is graded as it stands and recorded, unless it runs a task of your own.

        Args:
            reason: why.

        Raises:
            ConfigError: if ``reason`` says nothing about the agent.
            ResetNeeded: if no episode is running.
            EnvBackendError: if the engine fails. The episode is given back then.
        """
        require_reason(reason)
        with self._reported():
            self._bare.cut(reason)

    def abandon(self, reason: EndReason = EndReason.ABANDONED) -> None:
        """Give the running episode back: it is run again, and counts as nothing.

        The env may still be stepped, unrecorded. Without an episode that is recorded, nothing
        happens.

        Args:
            reason: why, such as ``EndReason.WORKER_LOST``.
        """
        if self._ticket is not None:
            abandoned, self._ticket = self._ticket, None
            self._stream.give_back(abandoned, reason)

    def close(self) -> None:
        """Give the running episode back and close the env; twice is fine."""
        self.abandon()
        super().close()

    def evolve(self) -> RoundResult | None:
        """Run the round of evolution that is due; None if none is."""
        return self._stream.evolve()

    def state_dict(self) -> dict[str, Any]:
        """The whole stream as JSON; the episode under way will be run again."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the stream of :meth:`state_dict`; call ``reset()`` next."""
        self._stream.load_state_dict(state)
        self._ticket, self._guided = None, None

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the episode that ends in here, be it by a fault of its engine."""
        ended, self._ticket = self._ticket, None
        try:
            yield
        finally:
            if ended is not None:
                self._stream.report(ended, self._bare, self._guided)

    @property
    def _bare(self) -> TaskEnv:
        return cast(TaskEnv, self.unwrapped)
