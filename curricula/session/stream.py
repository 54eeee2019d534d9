"""The episode stream that connects a sampler's envs, or a rollout process, to a session."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

import gymnasium as gym

from coevo_gym.core.benchmark import grows, starts_with_native_tasks
from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.registry import METHODS
from coevo_gym.core.seams import Agent, Curriculum, Evolver, Later, Ticket
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.guiding import GroupStudies, GuidedEpisode, Guiding, MethodParts
from coevo_gym.curricula.pool_curriculum import PoolCurriculum, make_curriculum
from coevo_gym.curricula.saved import restore_on_error, validate
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import Finished, TrainingEpisode, episode_of, trajectory_of
from coevo_gym.episodes.runner import Mode, Runner

logger = logging.getLogger(__name__)

EvolveMode = Literal["inline", "manual"]
DEFAULT_EVERY = 320

_episodes: WeakValueDictionary[tuple[str, str, int], TaskStream] = WeakValueDictionary()
"""The stream that took each of this process's latest tickets, by ticket id, task id and seed."""


class TaskStream:
    """A stream that gives a sampler its tickets, reports episodes and runs evolution rounds.

    Args:
        session: issues the tickets, in this process or remotely.
        evolve: ``"inline"`` runs a due round before the next ticket unless another thread is
            already running it; ``"manual"`` runs rounds only in :meth:`evolve`.
        method: guides the episodes and studies their groups; None for no guidance and studies. It
            requires a session in this process that uses the method's curriculum.

    Raises:
        ConfigError: if ``evolve`` is invalid, or two studies write notes of the same kind.
    """

    def __init__(
        self,
        session: TaskSession,
        evolve: EvolveMode,
        method: MethodParts | None = None,
    ) -> None:
        if evolve not in ("inline", "manual"):
            raise ConfigError(f"evolve must be 'inline' or 'manual', got {evolve!r}.")
        self.session = session
        self._inline = evolve == "inline"
        self._renewed = time.monotonic()
        self._renew_s = None if session.lease_s is None else session.lease_s / 4
        self._first_round: Round | None = None
        self._studies: GroupStudies | None = None
        self._episode: tuple[str, str, int] | None = None
        self._has_twin = False
        if method is not None:
            own = cast(CurriculumSession, session)
            guiding = Guiding(method.coach, method.studies, method.memories)
            self._studies = GroupStudies(guiding, own.groups_per_step, own.note)
            self._first_round = method.first_round

    @property
    def notes(self) -> Notes:
        """The notes on the groups of the latest completed step."""
        return NO_NOTES if self._studies is None else self._studies.notes

    @property
    def guiding(self) -> Guiding | None:
        """The method's guidance, or None if there is no method."""
        return None if self._studies is None else self._studies.guiding

    def take_ticket(self, *, slot: str | None = None, policy_version: int = 0) -> Ticket:
        """Return the next ticket. If rounds run inline, first run a round if one is due.

        Uses one request name for both attempts, so that a proxy can safely retry.

        Args:
            slot: name shared by the copies of a row; None for the next place in any group without a
                slot.
            policy_version: version of the policy that will act.

        Raises:
            ConfigError: if the pool is empty because no round has filled it.
            TaskError: if no ticket is available because other callers took all tickets of the open
                step.
        """
        request = uuid.uuid4().hex
        if self._inline and not self.session.is_evolving:
            self.session.close_spent_step()
            self.evolve()
        answer = self.session.take(slot=slot, policy_version=policy_version, request=request)
        if isinstance(answer, Later) and self._inline:
            self.session.evolve()  # another thread's round finds the initial tasks
            answer = self.session.take(slot=slot, policy_version=policy_version, request=request)
        if isinstance(answer, Later):
            raise TaskError(f"No ticket is available. {answer.reason}")
        if isinstance(self.session, CurriculumSession):
            self._register_episode(answer)
        return answer

    def _register_episode(self, ticket: Ticket) -> None:
        """Register the stream's latest episode. Warn once if another session runs it too."""
        episode = ticket.id, ticket.task.id, self.seed_of(ticket)
        other = _episodes.get(episode)
        if other is not None and other.session is not self.session and not self._has_twin:
            self._has_twin = True
            logger.warning(
                "task=%s: another sampler in this process runs the same episode, because both have "
                "the same seed and curriculum but separate sessions. If they belong to one "
                "trainer, pass the session of the first sampler to the others (session=), or wrap "
                "a vector env from gym.make_vec with EvolvingVectorSampler.",
                ticket.task.name,
            )
        if self._episode is not None and _episodes.get(self._episode) is self:
            del _episodes[self._episode]
        self._episode = episode
        _episodes[episode] = self

    def seed_of(self, ticket: Ticket) -> int:
        """Return the env seed of a ticket's episode."""
        return self.session.seed_of(ticket)

    def renew_if_due(self, tickets: Sequence[Ticket]) -> None:
        """Renew the leases of running episodes if a quarter of the lease time has passed."""
        if self._renew_s is not None and time.monotonic() - self._renewed >= self._renew_s:
            self._renewed = time.monotonic()
            for ticket in tickets:
                self.session.renew(ticket.id)

    def guide_episodes(self, tickets: Sequence[Ticket]) -> list[GuidedEpisode | None]:
        """Return the guided episode for each ticket; without a method, return None for each."""
        if self._studies is None:
            return [None] * len(tickets)
        return [
            GuidedEpisode(episode_of(ticket, self.seed_of(ticket), ticket.policy_version, guidance))
            for ticket, guidance in zip(tickets, self._studies.guiding.guide(tickets), strict=True)
        ]

    def report(
        self, ticket: Ticket, env: TaskEnv, guided: GuidedEpisode | None = None
    ) -> Group | None:
        """Report the episode that has ended in ``env``; return its group if this closes the group.

        Without ``guided``, the agent saw the episode unchanged.
        """
        if (end := env.info["end_reason"]) and EndReason(end).is_lost:
            return self.give_back(ticket, EndReason(end))
        trajectory = (
            trajectory_of(env, group_id=ticket.group_id, policy_version=ticket.policy_version)
            if guided is None
            else guided.make_trajectory(env)
        )
        return self._examine_if_closed(self.session.report(ticket.id, trajectory))

    def report_before_reset(
        self, ticket: Ticket, env: TaskEnv, guided: GuidedEpisode | None = None
    ) -> None:
        """Report the episode that a reset is about to end.

        A reset after a step ends the episode from outside, as a TimeLimit around the sampler does.
        The episode is then graded in its current state and recorded. An episode without steps is
        not recorded, and its ticket is given back.
        """
        if env.info["step"] == 0 and not env.info["end_reason"]:
            self.give_back(ticket, EndReason.ABANDONED)
            return
        try:
            with self.report_on_exit(ticket, env, guided):
                env.end_from_outside(env.info)
        except EnvBackendError as error:
            logger.warning("episode failed ticket=%s error=%s", ticket.id, error)

    @contextmanager
    def report_on_exit(
        self, ticket: Ticket | None, env: TaskEnv, guided: GuidedEpisode | None
    ) -> Iterator[None]:
        """Report an episode after the ``with`` block that ends it; on failure, return its ticket.

        Without a ticket, nothing is reported.
        """
        try:
            yield
        except BaseException as error:
            if ticket is not None:
                lost = isinstance(error, EnvBackendError)
                self.give_back(ticket, EndReason.WORKER_LOST if lost else EndReason.ABANDONED)
            raise
        if ticket is not None:
            self.report(ticket, env, guided)

    def give_back(self, ticket: Ticket, reason: EndReason) -> Group | None:
        """Give back a ticket, and return its group if the group closes. No failure is counted."""
        return self._examine_if_closed(self.session.give_back(ticket.id, reason))

    def evolve(self) -> RoundResult | None:
        """Run the first round if it is pending, otherwise the due round; None if none is due."""
        if self._first_round is None:
            return self.session.evolve()
        result = cast(CurriculumSession, self.session).run_round(self._first_round)
        self._first_round = None
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state, and the method's state if there is a method."""
        state = self.session.state_dict()
        if self._studies is not None:
            begun = self._first_round is None
            state["method"] = {"begun": begun, **self._studies.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; see :meth:`CurriculumSession.load_state_dict`.

        Raises:
            ConfigError: if the state is damaged, or belongs to a method with different memories.
                Nothing is loaded then.
        """
        studies = self._studies
        if studies is None:
            self.session.load_state_dict(state)
            return
        with restore_on_error(studies.state_dict, studies.load_state_dict):
            saved = validate(dict[str, Any], state.get("method", {}))
            studies.load_state_dict(saved)
            begun = validate(bool, saved.get("begun", False))
            self.session.load_state_dict(state)
        studies.notes = NO_NOTES
        if begun:
            self._first_round = None

    def _examine_if_closed(self, group: Group | None) -> Group | None:
        if group is not None and self._studies is not None:
            self._studies.examine(group)
        return group


class StreamSampler:
    """Base class for the single-env and vector-env samplers."""

    _stream: TaskStream

    @property
    def curriculum(self) -> Curriculum:
        """The session's curriculum. It is only available if the session is in this process."""
        return self.session.curriculum

    @property
    def session(self) -> CurriculumSession:
        """The session that issues tasks and records episodes.

        A remote session only has the members of ``TaskSession``.
        """
        return cast(CurriculumSession, self._stream.session)

    @property
    def guiding(self) -> Guiding | None:
        """The method's guidance, or None if there is no method."""
        return self._stream.guiding

    @property
    def notes(self) -> Notes:
        """The analysis notes on the latest completed step; empty if there is no method."""
        return self._stream.notes

    def evolve(self) -> RoundResult | None:
        """Run the evolution round that is due; return None if no round is due."""
        return self._stream.evolve()

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's full state as JSON. Running episodes start over after a restore."""
        return self._stream.state_dict()


def resolve_session(
    env: TaskEnv,
    session: TaskSession | None,
    curriculum: Curriculum | str | None,
    *,
    group_size: int,
    groups_per_step: int,
    evolve_every_groups: int,
    seed: int,
    evolver: Evolver | None,
    method: MethodParts | None = None,
) -> TaskSession:
    """Return the given session, or create a session for a sampler.

    Raises:
        ConfigError: if an argument is invalid or conflicts with the session or the method.
    """
    if method is not None:
        asked = (session, curriculum, evolver)
        if evolve_every_groups != DEFAULT_EVERY or asked != (None, None, None):
            raise ConfigError(
                "With method=, do not pass session, curriculum, evolver or "
                "evolve_every_groups, because the method defines them. Remove these "
                "arguments, or create the sampler without method=."
            )
        curriculum, evolver = method.curriculum, method.evolver
    elif session is not None:
        if session.benchmark not in ("", env.benchmark):
            raise ConfigError(
                f"The session has tasks of {session.benchmark}, but the env is for "
                f"{env.benchmark}. Serve {env.benchmark}, or create an env of {session.benchmark}."
            )
        arguments: dict[str, tuple[object, object]] = {
            "curriculum": (curriculum, None),
            "group_size": (group_size, 8),
            "groups_per_step": (groups_per_step, 1),
            "evolve_every_groups": (evolve_every_groups, DEFAULT_EVERY),
            "seed": (seed, 0),
            "evolver": (evolver, None),
        }
        if changed := [name for name, (value, default) in arguments.items() if value != default]:
            raise ConfigError(
                f"With session=, do not pass {', '.join(changed)}, because the session "
                "defines these values. Set them when you create the session, or create the "
                "sampler without session=."
            )
        return session
    else:
        if isinstance(curriculum, str | None):
            name = METHODS.default if curriculum is None else curriculum
            curriculum = make_curriculum_for_env(
                name, env, growth={"every_groups": evolve_every_groups}
            )
        elif evolve_every_groups != DEFAULT_EVERY:
            raise ConfigError(
                "evolve_every_groups applies only to a curriculum given by name. For a curriculum "
                "object, set the interval when you create the object."
            )
        evolver = evolver or scripted_evolver(env)
    return CurriculumSession(
        curriculum,
        evolver,
        group_size=group_size,
        groups_per_step=groups_per_step,
        seed=seed,
    )


def make_curriculum_for_env(name: str, env: TaskEnv, **settings: Any) -> PoolCurriculum:
    """Create the curriculum of a method for an env's tasks.

    Args:
        name: name of the method.
        env: an env with the training split. If its benchmark starts with native tasks, so does the
            curriculum.
        **settings: other fields of :class:`CurriculumConfig`.

    Raises:
        ConfigError: if the name is unknown, or a setting is out of bounds.
    """
    benchmark = env.benchmark_with_hold_out
    tasks = env.tasks if starts_with_native_tasks(benchmark) else ()
    return make_curriculum(name, tasks=tasks, native=env.tasks, grows=grows(benchmark), **settings)


def require_not_lost(reason: EndReason) -> EndReason:
    """Check that a reason for ending an episode early is valid, and return it.

    Raises:
        ConfigError: if the reason marks the episode as lost.
    """
    if EndReason(reason).is_lost:
        raise ConfigError(
            f"The end reason {str(reason)!r} is for lost or abandoned episodes, which are not "
            "graded. Use abandon() instead of cut()."
        )
    return EndReason(reason)


def scripted_evolver(env: TaskEnv) -> GatedEvolver:
    """Create an evolver that explores without a model, using new copies of ``env``."""
    benchmark = env.benchmark_with_hold_out
    spec: Any = env.spec or benchmark.env_id
    limit = env.max_steps  # the bare env's spec lacks the limit of a TimeLimit
    explorer = ScriptedExplorer(
        benchmark, make_env=lambda: gym.make(spec, max_steps=limit, disable_env_checker=True)
    )
    return GatedEvolver(benchmark, explorer, native=env.tasks)


def require_train_env(env: object) -> TaskEnv:
    """Return the unwrapped env if it is a coevo_gym env that uses the training split.

    Raises:
        ConfigError: if it is not a coevo_gym env.
        SplitLeakError: if the env has the validation or test split.
    """
    if not isinstance(env, TaskEnv):
        raise ConfigError(
            f"The sampler needs a coevo_gym env, got {type(env).__name__}. Create one "
            "with gym.make('CoEvolve-…-v0')."
        )
    if env.split is not Split.TRAIN:
        raise SplitLeakError(
            "The sampler requires the training split, but this env has "
            f"split={str(env.split)!r}. Create the env with split='train', and evaluate "
            "on an env without a sampler."
        )
    return env


def run_session_episodes(
    session: TaskSession,
    agent: Agent,
    envs: EnvPool,
    *,
    episodes: int,
    policy_version: Callable[[], int] = lambda: 0,
    mode: Mode = "lock_step",
) -> int:
    """Run episodes for a session, ``envs.max_envs`` at a time.

    The session runs due rounds while other workers continue. Leases are renewed whenever an episode
    ends, so a lease should last longer than an episode.

    Args:
        session: supplies tasks and records episodes.
        agent: the agent that acts.
        envs: envs with the training split.
        episodes: number of episodes to run, including failed episodes.
        policy_version: returns the current policy version.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.

    Returns:
        Number of reported episodes; all others failed and were given back.
    """
    stream, runner, reported = TaskStream(session, "inline"), Runner(envs, mode), 0
    for begun in range(0, episodes, envs.max_envs):
        tickets = [stream.take_ticket() for _ in range(min(envs.max_envs, episodes - begun))]
        out = dict(enumerate(tickets))
        version = policy_version()
        try:
            for outcome in runner.run(
                [_training_episode(t, stream, version) for t in tickets], agent
            ):
                ticket = out.pop(outcome.index)
                if isinstance(outcome, Finished):
                    session.report(ticket.id, outcome.record)
                    reported += 1
                else:
                    session.give_back(ticket.id, outcome.reason)
                stream.renew_if_due(list(out.values()))
        finally:
            for ticket in out.values():
                session.give_back(ticket.id, EndReason.ABANDONED)
    return reported


def _training_episode(ticket: Ticket, stream: TaskStream, version: int) -> TrainingEpisode:
    return TrainingEpisode(ticket.task, stream.seed_of(ticket), ticket.group_id, version)
