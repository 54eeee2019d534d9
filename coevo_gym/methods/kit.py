"""What a run hands to a method's file: makers of parts, and the settings of those parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Round
from coevo_gym.core.inquiry import Advisor, Scope
from coevo_gym.core.seams import Evolver, Policy
from coevo_gym.core.task import Task
from coevo_gym.curricula.explore.evolver import GatesOf
from coevo_gym.curricula.explore.explorer import Explorer
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.trainers.settings import LearnerConfig


@dataclass(frozen=True, kw_only=True)
class Kit:
    """All that a method is made from. It holds no more of a run's settings than these parts need.

    The settings are those of the arm: the run's, what defines the method, and what the arm sets.

    Attributes:
        benchmark: what is practised.
        native_tasks: its training tasks.
        starts: those of them that rounds may explore from; targets are planned from these.
        max_steps: most steps of an episode.
        curriculum: settings of the pool, of what is drawn from it and of its growth.
        learner: settings of the learner.
        make_env: one raw env on the training split.
        policy: the policy under training. There is one, and it is made when it is first asked for.
        explorer: who goes back into the env in a round, as ``explorer.kind`` says. It may be given
            the room of the prompt files that a model explores with.
        advisor: the model that explores, to be asked questions; a ``ConfigError`` where none does.
        scope: for an evolver of one's own: what models are asked in its rounds is taped and counted
            by it.
        gates: the gates that a draft must pass.
        evolver: carries out rounds with an explorer and the gates.
        first_round: the round that finds the first ``n`` tasks, as ``curriculum.initial`` says. It
            is the same for all arms that say the same and look for equally many, so that they begin
            with the same tasks.
        seed: the seed of one part of the run, by what it is for.
    """

    benchmark: Benchmark
    native_tasks: Sequence[Task]
    starts: Sequence[Task]
    max_steps: int
    curriculum: CurriculumConfig
    learner: LearnerConfig
    make_env: Callable[[], gym.Env[str, str]]
    policy: Callable[[], Policy]
    explorer: Callable[..., Explorer]
    advisor: Callable[[], Advisor]
    scope: Scope
    gates: GatesOf
    evolver: Callable[[Explorer], Evolver]
    first_round: Callable[[int], Round]
    seed: Callable[[str], int]
