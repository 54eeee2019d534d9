"""A Gymnasium wrapper that adds a curriculum to any env in this package."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.seams import Curriculum, Evolver, Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.guiding import GuidedEpisode, MethodParts
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.curricula.session.stream import (
    DEFAULT_EVERY,
    EvolveMode,
    StreamSampler,
    TaskStream,
    require_not_lost,
    require_train_env,
    resolve_session,
)
from coevo_gym.envs.base import TaskEnv


class EvolvingTaskSampler(StreamSampler, gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An env wrapper that chooses each episode's task, records results and evolves the task set.

    ``reset()`` starts the curriculum's next episode; each task runs ``group_size`` times in a row.
    Finished episodes are recorded automatically. A ``reset()`` after at least one step means that
    an outer wrapper ended the episode, such as a TimeLimit around the sampler. The episode is then
    graded in its current state and recorded with ``end_reason`` ``time_limit``. A ``reset()``
    before any step, :meth:`abandon` and :meth:`close` give the episode back, so it runs again and
    is not counted. ``reset(options={"task": …})`` (or ``"task_id"``) runs that task without
    recording it. Success is the env's own outcome, regardless of reward wrappers.

    Wrap one env in the main process. For many envs at once, use ``EvolvingVectorSampler``.

    Args:
        env: a coevo_gym env with the training split, wrapped or not.
        curriculum: name of the method whose curriculum to use, or a curriculum object; None for the
            default method (CoEvolve).
        group_size: K, number of episodes per task in a row.
        groups_per_step: number of groups that your trainer learns from before its policy changes.
            Their tasks are drawn and their groups recorded together. 1 records each group as it
            closes.
        evolve: ``"inline"`` runs an evolution round inside ``reset()`` when a round is due (the
            first round finds the initial tasks); ``"manual"`` leaves rounds to :meth:`evolve`.
        evolve_every_groups: number of groups between two rounds, if ``curriculum`` is a name.
        seed: seed for the whole stream of tasks, rounds and episodes.
        evolver: runs the rounds; None to explore without a model.
        session: a session to use, possibly shared with other samplers and threads, or a proxy to a
            session, which works in any process. It replaces all arguments above except ``evolve``.
            None to create a session.
        method: a method's parts, such as a ``Method``, whose curriculum and evolver are used. The
            method's coach supplies the cues in ``info["cues"]`` and the interface that changes
            observations and texts in info. The studies read each group that closes, and the
            curriculum and the memories receive the notes once per ``groups_per_step`` groups. Your
            trainer handles the credit and the learner. None leaves the env unchanged.

    Raises:
        SplitLeakError: if the env does not have the training split.
        ConfigError: if the sampler is created in a child process, or an argument is invalid.

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
        session: TaskSession | None = None,
        method: MethodParts | None = None,
    ) -> None:
        is_name = isinstance(curriculum, str | None)
        self._has_json_spec = is_name and (evolver, session, method) == (None, None, None)
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
                "EvolvingTaskSampler was created in a child process, where it cannot see "
                "the episodes of other processes. Wrap the vector env in the main process "
                "with EvolvingVectorSampler, or share a session: pass an HTTPSession (`coevo "
                "serve`) or a RaySession as session=."
            )
        session = resolve_session(
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
        """The env's spec with this wrapper added, or None if its arguments cannot be stored."""
        return super().spec if self._has_json_spec else None

    @property
    def ticket(self) -> Ticket | None:
        """The running episode's ticket; None between episodes, or if the caller chose the task."""
        return self._ticket

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode.

        Args:
            seed: env seed; None to derive the seed from the stream's seed.
            options: ``"slot"`` is the name shared by the copies of a row, and ``"policy_version"``
                is the version of the policy that will act (see ``TaskSession.take``). All
                other options are passed to the env. An episode of a ``"task"`` or ``"task_id"`` in
                the options is not recorded.

        Raises:
            ConfigError: if there are no tasks yet.
            TaskError: if no ticket is available because other callers took all tickets of the open
                step.
        """
        if self._ticket is not None:
            ended, self._ticket = self._ticket, None
            self._stream.report_before_reset(ended, self._bare_env, self._guided)
        self._guided = None
        options = dict(options or {})
        wanted = {key: options.pop(key) for key in ("slot", "policy_version") if key in options}
        if options.keys() & {"task", "task_id"}:
            return self.env.reset(seed=seed, options=options)
        ticket = self._stream.take_ticket(**wanted)
        seed = self._stream.seed_of(ticket) if seed is None else seed
        try:
            (guided,) = self._stream.guide_episodes([ticket])
            begun = self.env.reset(seed=seed, options={**options, "task": ticket.task})
            if guided is not None:
                begun = guided.show(self._bare_env, *begun)
        except BaseException as error:
            lost = isinstance(error, EnvBackendError)
            self._stream.give_back(ticket, EndReason.WORKER_LOST if lost else EndReason.ABANDONED)
            raise
        self._ticket, self._guided = ticket, guided
        return begun

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env, and record the episode if it has ended."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            with self._report_on_exit():
                info = self._bare_env.end_from_outside(info)
        elif self._ticket is not None:
            self._stream.renew_if_due([self._ticket])
        if self._guided is not None:
            observation, info = self._guided.show(self._bare_env, observation, info)
        return observation, reward, terminated, truncated, info

    def cut(self, reason: EndReason) -> None:
        """End the running episode early because its agent cannot continue.

        The episode is graded in its current state and recorded, unless it runs a task that you
        passed to ``reset()``.

        Raises:
            ConfigError: if ``reason`` means that the episode is lost.
            ResetNeeded: if no episode is running.
            EnvBackendError: if the engine fails. The episode is then given back.
        """
        require_not_lost(reason)
        with self._report_on_exit():
            self._bare_env.cut(reason)

    def abandon(self, reason: EndReason = EndReason.ABANDONED) -> None:
        """Give back the running episode's ticket, so that the session can issue it again.

        The episode is not counted. You can still step the env. Nothing happens if no episode runs.

        Args:
            reason: the reason, such as ``EndReason.WORKER_LOST``.
        """
        if self._ticket is not None:
            abandoned, self._ticket = self._ticket, None
            self._stream.give_back(abandoned, reason)

    def close(self) -> None:
        """Give back the running episode's ticket and close the env; safe to call twice."""
        self.abandon()
        super().close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the stream from :meth:`state_dict`; call ``reset()`` next."""
        self._stream.load_state_dict(state)
        self._ticket, self._guided = None, None

    def _report_on_exit(self) -> AbstractContextManager[None]:
        """Return a context that reports the running episode on exit, unless the block fails."""
        ended, self._ticket = self._ticket, None
        return self._stream.report_on_exit(ended, self._bare_env, self._guided)

    @property
    def _bare_env(self) -> TaskEnv:
        return cast(TaskEnv, self.unwrapped)
