"""What a run hands to a method's file: makers of parts, and the settings of those parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Round
from coevo_gym.core.inquiry import Advisor, Scope
from coevo_gym.core.seams import Evolver, Policy
from coevo_gym.core.task import Task
from coevo_gym.curricula.explore.explorer import Explorer
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods import DEFAULT_PROMPTS
from coevo_gym.trainers.settings import LearnerConfig


class Kit(Protocol):
    """All that a method is made from. It holds no more of a run's settings than these parts need.

    The settings are those of the arm: the run's, those that define the method, and the arm's own.
    """

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark that is practised."""
        ...

    @property
    def native_tasks(self) -> Sequence[Task]:
        """Its training tasks."""
        ...

    @property
    def starts(self) -> Sequence[Task]:
        """Training tasks that rounds may explore from; targets are planned from these."""
        ...

    @property
    def max_steps(self) -> int:
        """Most steps of an episode."""
        ...

    @property
    def curriculum(self) -> CurriculumConfig:
        """Settings of the pool, its selector and its growth."""
        ...

    @property
    def learner(self) -> LearnerConfig:
        """Settings of the learner."""
        ...

    @property
    def scope(self) -> Scope:
        """Names the work of an evolver of one's own, so that what it asks is taped and counted."""
        ...

    def make_env(self) -> gym.Env[str, str]:
        """Create a raw env on the training split."""
        ...

    def policy(self) -> Policy:
        """Return the policy under training. There is one, made when it is first asked for."""
        ...

    def explorer(self, prompts: str = DEFAULT_PROMPTS) -> Explorer:
        """Create the explorer that ``explorer.kind`` names.

        Args:
            prompts: the room of the prompt files that a model explores with.

        Raises:
            ConfigError: if models cannot explore the benchmark, or there is no such prompt.
        """
        ...

    def advisor(self) -> Advisor:
        """Return the model that explores, to be asked questions.

        Raises:
            ConfigError: if this run asks no model.
        """
        ...

    def gates(self, benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
        """Create the gates that a draft must pass."""
        ...

    def evolver(self, explorer: Explorer) -> Evolver:
        """Create the evolver that carries out rounds with an explorer and the gates."""
        ...

    def first_round(self, n: int) -> Round:
        """Return the round that finds the first ``n`` tasks, as ``curriculum.initial`` says.

        It is the same for all arms that say the same and look for equally many, so that they begin
        with the same tasks.
        """
        ...

    def seed(self, purpose: str) -> int:
        """Return the seed of one part of the run."""
        ...
