"""What every method keeps, as a check over its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
from pydantic import TypeAdapter

from coevo_gym.core.benchmark import Benchmark, get_benchmark
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.inquiry import Scope, no_scope
from coevo_gym.core.seams import Curriculum, Evolver
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import Explorer, ScriptedExplorer
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates
from coevo_gym.curricula.growth.targets import first_round
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import MethodSpec
from coevo_gym.testing.curriculum import assert_curriculum_contract
from coevo_gym.trainers.settings import LearnerConfig

_TASKS = 6


def assert_method_contract(spec: MethodSpec, *, benchmark: str = "webshop") -> None:
    """Check that a method keeps its promises.

    It says what it is; it can be made with its own settings as they are, afresh each time; its
    first round finds tasks; and its curriculum keeps the contract of one.

    Args:
        spec: the method.
        benchmark: name of a benchmark to try it on.

    Raises:
        AssertionError: at the first promise that is broken.
        ConfigError: if a setting that defines it is none.
    """
    assert spec.summary, f"the docstring of {spec.name!r} says what the method is, in a line"
    kit, settings = kit_of(spec, benchmark), spec.settings()
    one, other = spec(settings, kit), spec(settings, kit)
    assert one.curriculum is not other.curriculum, "two arms would share one curriculum"
    found: RoundResult | None = None
    if one.first_round is not None:
        assert one.evolver is not None, "a first round needs an evolver to carry it out"
        found = one.evolver.run(one.first_round)
        assert found.accepted, "the first round finds no task"

    def ready() -> Curriculum:
        curriculum = spec(settings, kit).curriculum
        if found is not None:
            curriculum.apply(found)
        return curriculum

    assert_curriculum_contract(ready, benchmark=benchmark)


@dataclass(frozen=True, kw_only=True)
class _BareKit:
    """A kit without a run around it: it has no policy and no model."""

    benchmark: Benchmark
    native_tasks: Sequence[Task]
    curriculum: CurriculumConfig
    learner: LearnerConfig
    seed: Callable[[str], int]
    max_steps: int = 15

    @property
    def scope(self) -> Scope:
        return no_scope

    @property
    def starts(self) -> Sequence[Task]:
        return self.native_tasks

    def make_env(self) -> gym.Env[str, str]:
        return gym.make(self.benchmark.env_id)

    def policy(self) -> NoReturn:
        raise AssertionError("a method is assembled before there is a policy: ask when it is used")

    def advisor(self) -> NoReturn:
        raise AssertionError("a method is assembled where no model is asked: ask when it is used")

    def explorer(self, prompts: str = "") -> Explorer:
        return ScriptedExplorer(self.benchmark, make_env=self.make_env)

    def gates(self, benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
        return default_gates(benchmark, known)

    def evolver(self, explorer: Explorer) -> Evolver:
        return GatedEvolver(self.benchmark, explorer)

    def first_round(self, n: int) -> Round:
        found = first_round(n, self.curriculum.initial, native=self.native_tasks, seed=0)
        return found.model_copy(update={"budget": 40 * n})


def kit_of(spec: MethodSpec, benchmark: str) -> Kit:
    """Return a kit with the settings that define a method."""
    found, sections = get_benchmark(benchmark), _sections(spec.sets)
    curriculum = CurriculumConfig(**{"initial_size": _TASKS, **sections.get("curriculum", {})})
    return _BareKit(
        benchmark=found,
        native_tasks=found.tasks(Split.TRAIN),
        curriculum=curriculum,
        learner=TypeAdapter(LearnerConfig).validate_python(sections.get("learner", {})),
        seed=_seed_of(spec.name),
    )


def _seed_of(name: str) -> Callable[[str], int]:
    return lambda purpose: sum(f"{name}/{purpose}".encode())


def _sections(sets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by dotted key as nested ones."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in sets.items():
        *path, last = key.split(".")
        place: dict[str, Any] = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
