"""The stream of episodes behind both samplers: how envs practise what a session gives out."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import gymnasium as gym

from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.registry import METHODS
from coevo_gym.core.seams import Curriculum, Evolver, Later, Ticket
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.guiding.group_studies import GroupStudies
from coevo_gym.curricula.guiding.guided_episode import GuidedEpisode
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.guiding.method_parts import MethodParts
from coevo_gym.curricula.registry import make_curriculum
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import episode_of, trajectory_of

logger = logging.getLogger(__name__)

EvolveMode = Literal["inline", "manual"]
DEFAULT_EVERY = 320


class TaskStream:
    """Tickets to run, episodes taken in, and rounds of evolution in between.

    Args:
        session: gives out the tickets, here or elsewhere.
        evolve: ``"inline"`` runs a round that is due before the next ticket, unless another thread
            is running it; ``"manual"`` leaves rounds to :meth:`evolve`.
        clock: tells the time in seconds, for leases.
        method: guides the episodes and studies their groups; None for neither. The session is one
            of this process then, and practises the method's curriculum.

    Raises:
        ConfigError: if ``evolve`` is neither, or two studies write notes of one kind.
    """

    def __init__(
        self,
        session: SessionFace,
        evolve: EvolveMode,
        clock: Callable[[], float] = time.monotonic,
        method: MethodParts | None = None,
    ) -> None:
        if evolve not in ("inline", "manual"):
            raise ConfigError(f"evolve must be 'inline' or 'manual', actual: {evolve!r}")
        self.session = session
        self._inline = evolve == "inline"
        self._clock, self._renewed = clock, clock()
        self._renew_s = None if session.lease_s is None else session.lease_s / 4
        self._first_round: Round | None = None
        self._studies: GroupStudies | None = None
        if method is not None:
            own = cast(CurriculumSession, session)
            guiding = Guiding(method.coach, method.studies, method.memories)
            self._studies = GroupStudies(guiding, own.groups_per_step, own.note)
            self._first_round = method.first_round

    @property
    def notes(self) -> Notes:
        """What was noted about the groups of the latest step that is over."""
        return NO_NOTES if self._studies is None else self._studies.notes

    @property
    def guiding(self) -> Guiding | None:
        """Coach, studies and memories; None without a method."""
        return None if self._studies is None else self._studies.guiding

    def take(self, *, slot: str | None = None, policy_version: int = 0) -> Ticket:
        """The next ticket; runs a due round first if rounds are inline.

        It is asked for by one name, so that whoever passes a call on may repeat it.

        Args:
            slot: where the copies of one row meet; None for the next place of any other group.
            policy_version: version of the policy that is about to act.

        Raises:
            ConfigError: if the pool is empty, because no round has filled it.
            TaskError: if there is no ticket now, because others have taken those of an open step.
        """
        request = uuid.uuid4().hex
        if self._inline and not self.session.evolving:
            self.session.close_spent_step()
            self.evolve()
        found = self.session.take(slot=slot, policy_version=policy_version, request=request)
        if isinstance(found, Later) and self._inline:
            self.session.evolve()  # another thread's round finds the first tasks
            found = self.session.take(slot=slot, policy_version=policy_version, request=request)
        if isinstance(found, Later):
            raise TaskError(f"There is no episode to begin. {found.reason}")
        return found

    def seed_of(self, ticket: Ticket) -> int:
        """The env seed of a ticket's episode."""
        return self.session.seed_of(ticket)

    def renew(self, tickets: Sequence[Ticket]) -> None:
        """Say that these episodes are under way, as often as their leases need it."""
        if self._renew_s is not None and self._clock() - self._renewed >= self._renew_s:
            self._renewed = self._clock()
            for ticket in tickets:
                self.session.renew(ticket.id)

    def guide(self, tickets: Sequence[Ticket]) -> list[GuidedEpisode | None]:
        """How each ticket's episode is shown; None as it is."""
        if self._studies is None:
            return [None] * len(tickets)
        return [
            GuidedEpisode(episode_of(ticket, self.seed_of(ticket), ticket.policy_version, guidance))
            for ticket, guidance in zip(tickets, self._studies.guiding.guide(tickets), strict=True)
        ]

    def report(
        self, ticket: Ticket, env: TaskEnv, guided: GuidedEpisode | None = None
    ) -> Group | None:
        """Take in the episode that has ended in ``env``; returns the group it closes.

        Args:
            ticket: what it was run for.
            env: where.
            guided: how it was shown.
        """
        if (end := env.info["end_reason"]) and EndReason(end).lost:
            return self.give_back(ticket, EndReason(end))
        trajectory = (
            trajectory_of(env, group_id=ticket.group_id, policy_version=ticket.policy_version)
            if guided is None
            else guided.record(env)
        )
        return self._studied(self.session.report(ticket.id, trajectory))

    def settle(self, ticket: Ticket, env: TaskEnv, guided: GuidedEpisode | None = None) -> None:
        """Take in the episode that a reset is about to end.

        Whoever resets after a step has ended the episode from outside, as a TimeLimit around the
        sampler does: it is graded as it stands and recorded. An episode without a step says
        nothing, and its ticket is given back.
        """
        if env.info["step"] == 0 and not env.info["end_reason"]:
            self.give_back(ticket, EndReason.ABANDONED)
            return
        try:
            env.end_from_outside(env.info)
        except EnvBackendError as error:
            logger.warning("episode lost ticket=%s error=%s", ticket.id, error)
        self.report(ticket, env, guided)

    def give_back(self, ticket: Ticket, reason: EndReason) -> Group | None:
        """Return a ticket whose episode says nothing about the agent; the group it closes."""
        return self._studied(self.session.give_back(ticket.id, reason))

    def evolve(self) -> RoundResult | None:
        """Run the round that a method begins with, or the one that is due; None if none is."""
        if self._first_round is None:
            return self.session.evolve()
        result = cast(CurriculumSession, self.session).run_round(self._first_round)
        self._first_round = None
        return result

    def state_dict(self) -> dict[str, Any]:
        """The session's state, and with a method that of its memories."""
        state = self.session.state_dict()
        if self._studies is not None:
            begun = self._first_round is None
            state["method"] = {"begun": begun, **self._studies.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; see :meth:`CurriculumSession.load_state_dict`.

        Raises:
            ConfigError: if it is of a method with other memories.
        """
        self.session.load_state_dict(state)
        if self._studies is not None:
            saved = state.get("method", {})
            self._studies.load_state_dict(saved)
            if saved.get("begun"):
                self._first_round = None

    def _studied(self, group: Group | None) -> Group | None:
        if group is not None and self._studies is not None:
            self._studies.closed(group)
        return group


def session_of(
    env: TaskEnv,
    session: SessionFace | None,
    curriculum: Curriculum | str | None,
    *,
    group_size: int,
    groups_per_step: int,
    evolve_every_groups: int,
    seed: int,
    evolver: Evolver | None,
    method: MethodParts | None = None,
) -> SessionFace:
    """The session that a sampler practises: the one it is given, or one of its own.

    Args:
        env: one of the envs that episodes run in; says which tasks are native.
        session: a session that others practise too, or None.
        curriculum: a method's name, or a curriculum; None for the default method's.
        group_size: K, episodes a group.
        groups_per_step: groups that the trainer learns from at once.
        evolve_every_groups: groups between two rounds, for a method's name.
        seed: seed of the stream; the envs' seeds come from it too.
        evolver: carries out rounds; None explores without a model, in fresh copies of ``env``.
        method: what says curriculum and evolver, or None.

    Raises:
        ConfigError: if an argument is not usable, or is the session's or the method's to say.
    """
    if method is not None:
        asked = (session, curriculum, evolver)
        if evolve_every_groups != DEFAULT_EVERY or asked != (None, None, None):
            raise ConfigError(
                "The method says what session, curriculum, evolver and evolve_every_groups should "
                "be. Leave them out, or make a sampler without method=."
            )
        return CurriculumSession(
            method.curriculum,
            method.evolver,
            group_size=group_size,
            groups_per_step=groups_per_step,
            seed=seed,
        )
    if session is not None:
        given: dict[str, tuple[object, object]] = {
            "curriculum": (curriculum, None),
            "group_size": (group_size, 8),
            "groups_per_step": (groups_per_step, 1),
            "evolve_every_groups": (evolve_every_groups, DEFAULT_EVERY),
            "seed": (seed, 0),
            "evolver": (evolver, None),
        }
        if changed := [name for name, (value, default) in given.items() if value != default]:
            raise ConfigError(
                f"The session says what {', '.join(changed)} should be. Set it where the session "
                "is made, or make a sampler without session=."
            )
        return session
    if isinstance(curriculum, str | None):
        name = METHODS.default if curriculum is None else curriculum
        curriculum = make_curriculum(
            name, native=env.tasks, evolve_every_groups=evolve_every_groups
        )
    elif evolve_every_groups != DEFAULT_EVERY:
        raise ConfigError(
            "evolve_every_groups is for a method's name; set it in the curriculum you pass."
        )
    return CurriculumSession(
        curriculum,
        evolver or scripted_evolver(env),
        group_size=group_size,
        groups_per_step=groups_per_step,
        seed=seed,
    )


def require_reason(reason: EndReason) -> EndReason:
    """Return a reason to cut an episode for, if an episode that ends so is one of the agent's.

    Raises:
        ConfigError: if it is none.
    """
    if EndReason(reason).lost:
        raise ConfigError(
            f"An episode that ends {str(reason)!r} says nothing about the agent and is not graded. "
            "Use abandon() instead of cut()."
        )
    return EndReason(reason)


def scripted_evolver(env: TaskEnv) -> GatedEvolver:
    """An evolver that explores without a model, in fresh copies of ``env``."""
    benchmark = env.practised
    spec: Any = env.spec or benchmark.env_id
    limit = env.max_steps  # a TimeLimit's is not in the bare env's spec
    explorer = ScriptedExplorer(
        benchmark, make_env=lambda: gym.make(spec, max_steps=limit, disable_env_checker=True)
    )
    return GatedEvolver(benchmark, explorer, native=env.tasks)


def require_train_env(env: object) -> TaskEnv:
    """Return the bare env, if it is one of ours and on the training split.

    Raises:
        ConfigError: if it is not a coevo_gym env.
        SplitLeakError: if it is on the validation or test split.
    """
    if not isinstance(env, TaskEnv):
        raise ConfigError(
            f"The sampler needs a coevo_gym env inside, actual: {type(env).__name__}. "
            "Make one with gym.make('CoEvolve-…-v0')."
        )
    if env.split is not Split.TRAIN:
        raise SplitLeakError(
            f"The sampler records and trains, but this env was made with split={str(env.split)!r}. "
            "Make it with split='train', and evaluate on an env without a sampler."
        )
    return env
