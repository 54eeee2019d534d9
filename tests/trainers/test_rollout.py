from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.agents.random import RandomAgent
from coevo_gym.agents.references import evaluate_references
from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError, SplitLeakError
from coevo_gym.core.seams import Act, Agent, Choice, Completion, Request, Ticket
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import ChoiceDecision, EndReason, EvalTrajectory, View
from coevo_gym.episodes.evaluation import evaluate
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import rollout
from tests.toy import BENCHMARK

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
REFERENCES = {task.instruction: task.solution for task in (*TRAIN, *VAL)}


def tickets(n: int) -> list[Ticket]:
    return [Ticket(f"t{i}", TRAIN[i], f"g{i // 2}", i % 2) for i in range(n)]


class FirstChoice:
    """A policy that takes the first candidate and keeps the size of each batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def generate(self, requests: Any) -> list[Completion]:
        self.batches.append(len(requests))
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        assert isinstance(request, Choice)
        decision = ChoiceDecision(request.context, request.choices, 0, -0.5)
        return Completion(request.choices[0], decision)


class BreaksOn(gym.Wrapper[str, str, str, str]):
    """An engine that dies on one action."""

    def __init__(self, env: gym.Env[str, str], action: str) -> None:
        super().__init__(env)
        self.action, self.closed = action, False

    def step(self, action: str) -> Any:
        if action == self.action:
            raise EnvBackendError("the engine is gone")
        return super().step(action)

    def close(self) -> None:
        self.closed = True


class NoAnswer:
    """An agent whose model gives no answer about one task, from its second step on."""

    def __init__(self, agent: Agent, about: str) -> None:
        self.agent, self.about = agent, about

    def act(self, views: Sequence[View]) -> list[Act]:
        acts = self.agent.act(views)
        lost = Act("", said="the model is busy", end=EndReason.MODEL_LOST)
        return [
            lost if view.history and self.about in view.instruction else act
            for view, act in zip(views, acts, strict=True)
        ]


class TestRollout:
    def test_a_model_without_an_answer_costs_its_own_episode_only(self, envs: EnvPool) -> None:
        agent = NoAnswer(ScriptedAgent(REFERENCES), TRAIN[1].instruction)
        found = rollout(tickets(3), agent, envs)
        assert [t and t.success for t in found.trajectories] == [True, None, True]
        assert isinstance(found.faults[1], ModelError)
        assert str(found.faults[1]) == "the model is busy"

    def test_trajectories_come_in_ticket_order_with_their_labels(self, envs: EnvPool) -> None:
        found = rollout(tickets(6), ScriptedAgent(REFERENCES), envs, policy_version=3)
        assert [t.task_id for t in found.trajectories if t] == [task.id for task in TRAIN[:6]]
        assert all(t and t.success and t.policy_version == 3 for t in found.trajectories)
        assert [t.group_id for t in found.trajectories if t] == ["g0", "g0", "g1", "g1", "g2", "g2"]
        assert found.env_steps == 6 * 4
        assert found.faults == {}

    def test_decisions_lie_in_the_steps(self, envs: EnvPool) -> None:
        policy = FirstChoice()
        (found,) = rollout(tickets(1), ChoiceAgent(policy, BENCHMARK.choices), envs).trajectories
        assert found is not None
        assert len(found.steps) == 8
        for number, step in enumerate(found.steps):
            assert isinstance(step.decision, ChoiceDecision)
            assert step.decision.choices[step.decision.index] == step.action
            assert step.decision.context.observation == step.observation
            assert len(step.decision.context.history) == number

    def test_live_episodes_ask_together_and_are_bounded(self) -> None:
        pool = EnvPool(lambda: gym.make("Toy-v0"), max_envs=4)
        policy = FirstChoice()
        found = rollout(tickets(6), ChoiceAgent(policy, BENCHMARK.choices), pool)
        assert all(found.trajectories)
        assert policy.batches == [4] * 8 + [2] * 8

    def test_the_order_of_finishing_does_not_matter(self, envs: EnvPool) -> None:
        small = EnvPool(lambda: gym.make("Toy-v0"), max_envs=1)
        agent = ScriptedAgent(REFERENCES)
        assert rollout(tickets(5), agent, envs) == rollout(tickets(5), agent, small)

    def test_a_lost_engine_costs_its_own_episode_only(self) -> None:
        made: list[BreaksOn] = []

        def make() -> gym.Env[str, str]:
            made.append(BreaksOn(gym.make("Toy-v0"), TRAIN[2].solution[2]))
            return made[-1]

        wanted = [task for task in TRAIN if TRAIN[2].solution[2] not in task.solution][:3]
        chosen = [
            Ticket(f"t{i}", task, "g", i)
            for i, task in enumerate([*wanted[:2], TRAIN[2], wanted[2]])
        ]
        found = rollout(chosen, ScriptedAgent(REFERENCES), EnvPool(make))
        assert [t is not None and t.success for t in found.trajectories] == [
            True,
            True,
            False,
            True,
        ]
        assert "the engine is gone" in str(found.faults[2])
        assert found.env_steps == 3 * 4 + 1 + [
            a == TRAIN[2].solution[2] for a in TRAIN[2].solution
        ].index(True)
        assert [env.closed for env in made] == [False, False, True, False]

    def test_only_training_tasks(self, envs: EnvPool) -> None:
        ticket = Ticket("t", VAL[0], "g", 0)
        with pytest.raises(SplitLeakError, match="val task"):
            rollout([ticket], ScriptedAgent(REFERENCES), envs)

    def test_nothing_to_do(self, envs: EnvPool) -> None:
        assert rollout([], ScriptedAgent([]), envs).trajectories == ()

    def test_an_agent_that_fails_leaves_no_env_behind(self, envs: EnvPool) -> None:
        with pytest.raises(ConfigError, match="script of 1 actions is over"):
            rollout(tickets(2), ScriptedAgent(["press red"]), envs)
        assert all(rollout(tickets(2), ScriptedAgent(REFERENCES), envs).trajectories)

    @pytest.mark.parametrize("size", [0, 2.5, True, "3", None])
    def test_a_pool_needs_room_for_one(self, size: Any) -> None:
        message = f"max_envs must be a positive int, actual: {size!r}"
        with pytest.raises(ConfigError, match=message):
            EnvPool(lambda: gym.make("Toy-v0"), max_envs=size)


class TestEvaluate:
    def test_counts(self, envs: EnvPool) -> None:
        scripts = dict(REFERENCES) | {task.instruction: ("done",) for task in VAL[:10]}
        found = evaluate(ScriptedAgent(scripts), VAL[:40], envs)
        assert found.split is Split.VAL
        assert found.success_rate == 0.75
        assert found.mean_score == 0.75
        assert found.env_steps == 10 + 30 * 4
        assert (found.low, found.high) == wilson_interval(30, 40)
        assert all(type(episode) is EvalTrajectory for episode in found.episodes)
        assert found.metrics()["episodes"] == 40.0

    def test_same_seed_same_result(self, envs: EnvPool) -> None:
        first, second = (
            evaluate(RandomAgent(BENCHMARK.choices, np.random.default_rng(5)), VAL, envs)
            for _ in range(2)
        )
        assert first == second

    def test_one_split_at_a_time(self, envs: EnvPool) -> None:
        with pytest.raises(ConfigError, match=r"train.*val"):
            evaluate(ScriptedAgent(REFERENCES), [TRAIN[0], VAL[0]], envs)
        with pytest.raises(ConfigError, match="no tasks"):
            evaluate(ScriptedAgent(REFERENCES), [], envs)

    def test_an_episode_without_a_model_is_no_failure(self, envs: EnvPool) -> None:
        agent = NoAnswer(ScriptedAgent(REFERENCES), VAL[1].instruction)
        found = evaluate(agent, VAL[:3], envs)
        assert (found.success_rate, found.faults, len(found.episodes)) == (1.0, 1, 2)
        with pytest.raises(ModelError, match=r"All 1 .* lost, the first because: the model is bu"):
            evaluate(agent, VAL[1:2], envs)

    def test_lost_episodes_are_no_failures(self) -> None:
        pool = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), "break"))
        scripts = dict(REFERENCES) | {VAL[0].instruction: ("break",)}
        found = evaluate(ScriptedAgent(scripts), VAL[:3], pool)
        assert (found.success_rate, found.faults, len(found.episodes)) == (1.0, 1, 2)
        with pytest.raises(EnvBackendError, match="All 2"):
            evaluate(ScriptedAgent(["break"]), VAL[:2], pool)

    def test_a_scenario_is_solved_if_all_of_its_tasks_are(self) -> None:
        first, second, third = (
            task.model_copy(update={"scenario": scenario})
            for task, scenario in zip(VAL[:3], ("one", "one", "two"), strict=True)
        )
        pool = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), "break"))

        def found(**scripts: tuple[str, ...]) -> tuple[float, float]:
            special = {VAL[int(name[1:])].instruction: acts for name, acts in scripts.items()}
            result = evaluate(ScriptedAgent(REFERENCES | special), [first, second, third], pool)
            return round(100 * result.success_rate, 1), 100 * result.scenario_success_rate

        assert found() == (100.0, 100.0)
        assert found(_1=("done",)) == (66.7, 50.0)  # the numbers that AppWorld gives for these
        assert found(_1=("break",)) == (100.0, 100.0)  # what was lost is no failure
        assert found(_0=("done",), _1=("break",)) == (50.0, 100.0)

    def test_an_evaluation_is_no_training_record(self, envs: EnvPool) -> None:
        (episode,) = evaluate(ScriptedAgent(REFERENCES), TRAIN[:1], envs).episodes
        assert not hasattr(episode, "policy_version")
        assert dataclasses.is_dataclass(episode)

    def test_references_are_the_ceiling_even_where_instructions_are_equal(
        self, envs: EnvPool
    ) -> None:
        alike = [task.model_copy(update={"instruction": "Press them."}) for task in VAL[:5]]
        assert len({task.solution for task in alike}) == 5
        found = evaluate_references(alike, envs, seed=3)
        assert found.success_rate == 1.0
        assert [episode.task_id for episode in found.episodes] == [task.id for task in alike]
        assert found.env_steps == sum(len(task.solution) for task in alike)
        idle = [VAL[0].model_copy(update={"solution": ()})]
        assert evaluate_references(idle, envs).success_rate == 0.0
        with pytest.raises(ConfigError, match="exactly one split"):
            evaluate_references([], envs)


class TestWilson:
    @pytest.mark.parametrize(
        ("successes", "n", "low", "high"),
        [
            (5, 10, 0.23659, 0.76341),
            (0, 10, 0.0, 0.27753),
            (10, 10, 0.72247, 1.0),
            (1, 1, 0.20655, 1.0),
        ],
    )
    def test_by_hand(self, successes: int, n: int, low: float, high: float) -> None:
        assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-5)

    @pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 2)])
    def test_impossible_counts(self, successes: int, n: int) -> None:
        with pytest.raises(ValueError, match="wilson_interval needs"):
            wilson_interval(successes, n)
