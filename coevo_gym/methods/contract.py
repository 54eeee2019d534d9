"""Contract checks that every training method and every learner must pass."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NoReturn

import gymnasium as gym

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Curriculum, Ticket
from coevo_gym.core.setting_sections import unflatten
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.explore.explorer import ExplorerConfig
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.growth.targets import first_round
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.runner import run_rollout
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import MethodSpec
from coevo_gym.testing.curriculum import assert_curriculum_contract
from coevo_gym.trainers.learners import check_learner, parse_learner_settings
from coevo_gym.trainers.protocols import TrainedLearner

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
    assert spec.summary, f"the docstring of {spec.name!r} must describe the method in one line"
    kit, settings = make_method_kit(spec, benchmark), spec.settings()
    one, other = spec(settings, kit), spec(settings, kit)
    assert one.curriculum is not other.curriculum, "two arms would share one curriculum"
    result: RoundResult | None = None
    if one.first_round is not None:
        assert one.evolver is not None, "a first round needs an evolver that runs it"
        result = one.evolver.run(one.first_round)
        assert result.accepted, "the first round finds no task"

    def make_curriculum() -> Curriculum:
        curriculum = spec(settings, kit).curriculum
        if result is not None:
            curriculum.apply(result)
        return curriculum

    assert_curriculum_contract(make_curriculum, benchmark=benchmark)


def make_method_kit(spec: MethodSpec, benchmark: str) -> Kit:
    """Create the :class:`Kit` from a method's own settings, for use outside a run."""
    source, sections = get_benchmark(benchmark), unflatten(spec.sets)
    native = source.tasks(Split.TRAIN)
    curriculum = CurriculumConfig(**{"initial_size": _TASKS, **sections.get("curriculum", {})})

    def raise_not_ready(*_: object) -> NoReturn:
        raise AssertionError("the policy does not exist yet: access it only during training")

    def plan_first(n: int) -> Round:
        planned = first_round(n, curriculum.initial, native=native, seed=0)
        return planned.model_copy(update={"budget": 40 * n})

    return Kit(
        benchmark=source,
        native_tasks=native,
        max_steps=15,
        observation_tokens=TaskEnv.observation_tokens,
        curriculum=curriculum,
        learner=parse_learner_settings(sections.get("learner", {})),
        make_env=lambda: gym.make(source.env_id),
        policy=raise_not_ready,
        first_round=plan_first,
        seed=lambda purpose: sum(f"{spec.name}/{purpose}".encode()),
        explorer_settings=ExplorerConfig(),
        gate_settings=GatesConfig(),
        tries=raise_not_ready,
        analyst=raise_not_ready,
        max_envs=8,
        group_size=_GROUP_SIZE,
        study_only_steps=sections.get("loop", {}).get("study_only_steps", 0),
        embedder=partial(curriculum.make_embedder, reads=False),
        language_model=False,
    )


def assert_learner_contract(learner: type[TrainedLearner], *, benchmark: str = "webshop") -> None:
    """Check that a learner with its default settings meets the requirements for all learners.

    Its updates must return finite numbers, and give the policies of two equal learners the same
    weights. A learner that is saved and restored between two updates must continue as if it had
    never been saved.

    Args:
        learner: class of the learner.
        benchmark: benchmark whose episodes it trains on.

    Raises:
        AssertionError: at the first check that fails.
        ConfigError: if the class lacks a method or its settings.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads add numbers in any order
    try:
        _check_updates(check_learner(learner), _make_mixed_groups(benchmark))
    finally:
        torch.set_num_threads(threads)


def _check_updates(learner: type[TrainedLearner], groups: Sequence[Group]) -> None:
    import torch

    from coevo_gym.agents.tiny import TinyPolicy

    def update(policy: TinyPolicy, own_learner: TrainedLearner) -> list[torch.Tensor]:
        metrics = own_learner.update(groups, own_learner.advantages(groups))
        odd = [name for name, value in metrics.items() if not math.isfinite(value)]
        assert not odd, f"update() returns values that are not finite: {', '.join(odd)}"
        return [weight.detach().clone() for weight in policy.parameters()]

    policies, settings = [TinyPolicy(seed=0) for _ in range(3)], learner.settings()
    first, second, restored = (learner(policy, settings, seed=0) for policy in policies)
    before = update(policies[0], first)
    assert all(map(torch.equal, before, update(policies[1], second))), (
        "two identical learners give different weights"
    )
    saved = io.BytesIO()
    torch.save([policies[0].state_dict(), first.state_dict(reference=False)], saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    policies[2].load_state_dict(state[0])
    restored.load_state_dict(state[1])
    assert all(map(torch.equal, update(policies[0], first), update(policies[2], restored))), (
        "a restored learner gives different weights"
    )


def _make_mixed_groups(benchmark: str) -> list[Group]:
    """Create groups of random episodes, and label every second episode a success."""
    from coevo_gym.agents.choice import ChoiceAgent
    from coevo_gym.agents.tiny import TinyPolicy

    bench = get_benchmark(benchmark)
    agent = ChoiceAgent(TinyPolicy(seed=0), bench.choices)
    groups = []
    with closing(EnvPool(lambda: gym.make(bench.env_id))) as envs:
        for place, task in enumerate(bench.tasks(Split.TRAIN)[:2]):
            tickets = [Ticket(f"{place}/{k}", task, str(place), k) for k in range(_GROUP_SIZE)]
            played = run_rollout(tickets, agent, envs, policy_version=0).trajectories
            assert None not in played, "an episode was lost"
            outcomes = [replace(t, success=k % 2 == 0) for k, t in enumerate(filter(None, played))]
            groups.append(Group(str(place), task, _GROUP_SIZE, tuple(outcomes)))
    return groups
