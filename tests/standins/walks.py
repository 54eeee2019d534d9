"""Walks through open tasks, and what becomes of what is proposed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark, require_proposable
from coevo_gym.core.evolution import Context, Exchange, Proposal, Verdict
from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Trajectory, View
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, run_one

Rule = Callable[[View, Generator], str]
"""The next action, from what an agent sees."""
Propose = Callable[[Sequence[Exchange]], Iterable[Proposal]]
"""What a walk gives rise to."""


class ByRule:
    """An agent that acts by a rule.

    Args:
        rule: says what to do.
        rng: all of its chance.
    """

    def __init__(self, rule: Rule, rng: Generator) -> None:
        self._rule, self._rng = rule, rng

    def act(self, views: Sequence[View]) -> list[Act]:
        return [Act(self._rule(view, self._rng)) for view in views]


def random_rule(benchmark: str) -> Rule:
    """Any of the benchmark's choices."""
    choices = get_benchmark(benchmark).choices

    def act(view: View, rng: Generator) -> str:
        actions = choices(view)
        return actions[int(rng.integers(len(actions)))]

    return act


def walk(task: Task, agent: Agent, max_steps: int) -> tuple[Exchange, ...]:
    """What an agent does in a task, and what comes of it."""
    name = get_benchmark(task.benchmark).env_id
    make = lambda: gym.make(name, max_steps=max_steps, disable_env_checker=True)  # noqa: E731
    with closing(EnvPool(make, max_envs=1)) as envs:
        outcome = run_one(TrainingEpisode(task, seed=0), agent, envs)
    assert isinstance(outcome, Finished)
    return exchanges(outcome.record)


def exchanges(trajectory: Trajectory) -> tuple[Exchange, ...]:
    """The actions of a trajectory, each with what it led to."""
    observations = [
        *(step.observation for step in trajectory.steps[1:]),
        trajectory.last_observation,
    ]
    return tuple(
        Exchange(action=step.action, observation=text, error_kind=step.error_kind)
        for step, text in zip(trajectory.steps, observations, strict=True)
    )


def evolve_tasks(
    sources: Sequence[Task], rule: Rule, propose: Propose, *, max_steps: int, wanted: int
) -> tuple[list[Task], list[Verdict]]:
    """Explore opened sources until so many tasks are accepted: those, and all verdicts."""
    benchmark = require_proposable(get_benchmark(sources[0].benchmark))
    known, accepted, verdicts = KnownTasks(()), list[Task](), list[Verdict]()
    gates = default_gates(benchmark, known)
    for number, source in enumerate(sources):
        context = Context(kind="unguided", task=benchmark.open(source))
        agent = ByRule(rule, np.random.default_rng(number))
        for proposal in propose(walk(context.task, agent, max_steps)):
            result = run_gates(gates, proposal, context=context)
            verdicts.append(result.verdict)
            if result.task is not None:
                known.add(result.task)
                accepted.append(result.task)
            if len(accepted) == wanted:
                return accepted, verdicts
    return accepted, verdicts


def assert_no_source_is_told(sources: Sequence[Task], verdicts: Sequence[Verdict]) -> None:
    """No draft holds what the task that its walk began in had asked for."""
    assert any(verdict.accepted for verdict in verdicts)
    wanted = {source.id: _requests_of(source) for source in sources}
    for verdict in verdicts:
        drafted = _strings(verdict.draft)
        for parent in verdict.draft["parents"]:
            assert not [
                phrase for phrase in wanted[parent] if any(phrase in text for text in drafted)
            ]


def _requests_of(source: Task) -> list[str]:
    """What a task asks for, in all its turns; a turn of a word or two may be said by chance."""
    texts = [source.instruction, *getattr(source.world, "turns", ())]
    return [" ".join(text.casefold().split()) for text in texts if len(text.split()) > 2]


def _strings(value: Any) -> list[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        return [" ".join(value.casefold().split())]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [t for item in value for t in _strings(item)] if isinstance(value, (list, tuple)) else []
