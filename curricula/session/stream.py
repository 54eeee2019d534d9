"""The stream of tickets behind both samplers: curriculum, ledger and evolver put together."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.random import SeedSequence

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.registry import METHODS
from coevo_gym.core.seams import Curriculum, Evolver, Ticket
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, Group
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.registry import make_curriculum
from coevo_gym.curricula.session.groups import GroupLedger
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.checks import is_positive_int

logger = logging.getLogger(__name__)

EvolveMode = Literal["inline", "manual"]
DEFAULT_EVERY = 320


class TaskStream:
    """Tickets to run, episodes taken in, and rounds of evolution in between.

    With more than one group a step, the step is opened when its first ticket is taken, and closed
    when its last episode has ended. Where episodes run side by side, it is closed when a ticket is
    taken and none of it is left: what still runs is then recorded with the next step.

    Args:
        env: one of the envs that episodes run in; says which tasks are native.
        curriculum: a method's name, or a curriculum; None for the default method's.
        group_size: K, episodes a group.
        groups_per_step: groups that the trainer learns from at once; their tasks are drawn at
            once, and recorded as one batch. 1 records each group as it closes.
        evolve: ``"inline"`` runs a round that is due before the next ticket; ``"manual"`` leaves
            rounds to :meth:`evolve`.
        evolve_every_groups: groups between two rounds, for a method's name.
        seed: seed of the stream; the envs' seeds come from it too.
        evolver: carries out rounds; None explores without a model, in fresh copies of ``env``.

    Raises:
        SplitLeakError: if the env is not on the training split.
        ConfigError: if an argument is not usable.
    """

    def __init__(
        self,
        env: TaskEnv,
        curriculum: Curriculum | str | None,
        *,
        group_size: int,
        groups_per_step: int,
        evolve: EvolveMode,
        evolve_every_groups: int,
        seed: int,
        evolver: Evolver | None,
    ) -> None:
        if not is_positive_int(groups_per_step):
            raise ConfigError(
                f"groups_per_step must be a positive int, actual: {groups_per_step!r}"
            )
        if evolve not in ("inline", "manual"):
            raise ConfigError(f"evolve must be 'inline' or 'manual', actual: {evolve!r}")
        if isinstance(curriculum, str | None):
            name = METHODS.default if curriculum is None else curriculum
            curriculum = make_curriculum(name, evolve_every_groups=evolve_every_groups)
        elif evolve_every_groups != DEFAULT_EVERY:
            raise ConfigError(
                "evolve_every_groups is for a method's name; set it in the curriculum you pass."
            )
        self.curriculum: Curriculum = curriculum
        self.evolver = evolver or scripted_evolver(env)
        self.ledger = GroupLedger(
            curriculum, group_size=group_size, seed=SeedSequence(seed, spawn_key=(0,))
        )
        self.groups_per_step = groups_per_step
        self._mode = evolve
        self._seed = seed
        self._rng = np.random.default_rng(SeedSequence(seed, spawn_key=(1,)))

    def take(self) -> Ticket:
        """The next ticket; runs a due round first if rounds are inline.

        Raises:
            ConfigError: if the pool is empty, because no round has filled it.
        """
        exhausted = self.groups_per_step > 1 and not self.ledger.n_ready
        if exhausted:
            self.ledger.close_step()
        if self._mode == "inline":
            self.evolve()
        if exhausted:
            self.ledger.open_step(self.groups_per_step)
        return self.ledger.issue()

    def seed_of(self, ticket: Ticket) -> int:
        """The env seed of a ticket's episode: a function of stream, group and place alone."""
        return zlib.crc32(f"{self._seed}/{ticket.group_id}/{ticket.index}".encode())

    def report(self, ticket: Ticket, env: TaskEnv) -> Group | None:
        """Take in the episode that has ended in ``env``; returns the group it closes."""
        if (end := env.info["end_reason"]) and EndReason(end).lost:
            return self.give_back(ticket, EndReason(end))
        trajectory = env.trajectory(group_id=ticket.group_id, policy_version=ticket.policy_version)
        closed = self.ledger.finish(ticket, trajectory)
        self._close_if_done()
        return closed

    def settle(self, ticket: Ticket, env: TaskEnv) -> None:
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
        self.report(ticket, env)

    def give_back(self, ticket: Ticket, reason: EndReason) -> Group | None:
        """Return a ticket whose episode says nothing about the agent; the group it closes."""
        closed = self.ledger.give_back(ticket, reason)
        self._close_if_done()
        return closed

    def evolve(self) -> RoundResult | None:
        """Run the round that is due, if one is."""
        round = self.curriculum.plan(self._rng)
        if round is None:
            return None
        result = self.evolver.run(round)
        self.curriculum.apply(result)
        return result

    def state_dict(self) -> dict[str, Any]:
        """All that the stream depends on, as JSON."""
        return {
            "groups_per_step": self.groups_per_step,
            "curriculum": self.curriculum.state_dict(),
            "ledger": self.ledger.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets that were out are the first to be taken again.

        Raises:
            ConfigError: if it was saved with other sizes of groups or steps.
        """
        saved = state.get("groups_per_step", 1)  # states from before there were steps
        if saved != self.groups_per_step:
            raise ConfigError(
                f"The stream was saved with groups_per_step={saved}, but this one was made with "
                f"groups_per_step={self.groups_per_step}. Use the saved number."
            )
        self.curriculum.load_state_dict(state["curriculum"])
        self.ledger.load_state_dict(state["ledger"])
        self._rng.bit_generator.state = state["rng"]

    def _close_if_done(self) -> None:
        """Close the open step when nothing of it is left to run."""
        if not (self.ledger.n_ready or self.ledger.outstanding):
            self.ledger.close_step()


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
    benchmark = get_benchmark(env.benchmark)
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
