"""A contract check that every training method must pass."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import gymnasium as gym
from pydantic import TypeAdapter

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum
from coevo_gym.core.sections import nested
from coevo_gym.core.task import Split
from coevo_gym.curricula.explore.explorer import ExplorerConfig
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.growth.targets import first_round
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.envs.base import TaskEnv
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import MethodSpec
from coevo_gym.testing.curriculum import assert_curriculum_contract
from coevo_gym.trainers.settings import LearnerConfig

_TASKS = 6
_GROUP_SIZE = 4


def assert_method_contract(spec: MethodSpec, *, benchmark: str = "webshop") -> None:
    """Check that a training method meets the requirements for all methods.

    The method must have a summary, create new components in each call, and find tasks in its first
    round, and its curriculum must meet the contract for curricula.

    Raises:
        AssertionError: if the method breaks the contract.
        ConfigError: if the method defines a setting that does not exist.
    """
    assert spec.summary, f"the docstring of {spec.name!r} says what the method is, in a line"
    kit, settings = kit_of(spec, benchmark), spec.settings()
    one, other = spec(settings, kit), spec(settings, kit)
    assert one.curriculum is not other.curriculum, "two arms would share one curriculum"
    result: RoundResult | None = None
    if one.first_round is not None:
        assert one.evolver is not None, "a first round needs an evolver to carry it out"
        result = one.evolver.run(one.first_round)
        assert result.accepted, "the first round finds no task"

    def ready() -> Curriculum:
        curriculum = spec(settings, kit).curriculum
        if result is not None:
            curriculum.apply(result)
        return curriculum

    assert_curriculum_contract(ready, benchmark=benchmark)


def kit_of(spec: MethodSpec, benchmark: str) -> Kit:
    """Create the :class:`Kit` from a method's own settings, for use outside a run."""
    source, sections = get_benchmark(benchmark), nested(spec.sets)
    native = source.tasks(Split.TRAIN)
    curriculum = CurriculumConfig(**{"initial_size": _TASKS, **sections.get("curriculum", {})})

    def none_yet(*_: object) -> NoReturn:
        raise AssertionError("the policy does not exist yet: access it only during training")

    def first(n: int) -> Round:
        planned = first_round(n, curriculum.initial, native=native, seed=0)
        return planned.model_copy(update={"budget": 40 * n})

    return Kit(
        benchmark=source,
        native_tasks=native,
        max_steps=15,
        observation_tokens=TaskEnv.observation_tokens,
        curriculum=curriculum,
        learner=TypeAdapter(LearnerConfig).validate_python(sections.get("learner", {})),
        make_env=lambda: gym.make(source.env_id),
        policy=none_yet,
        first_round=first,
        seed=lambda purpose: sum(f"{spec.name}/{purpose}".encode()),
        explorer_settings=ExplorerConfig(),
        gate_settings=GatesConfig(),
        tries=none_yet,
        analyst=none_yet,
        max_envs=8,
        group_size=_GROUP_SIZE,
        study_only_steps=sections.get("loop", {}).get("study_only_steps", 0),
        embedder=partial(curriculum.make_embedder, reads=False),
        language_model=False,
    )
