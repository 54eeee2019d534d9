from __future__ import annotations

import dataclasses
import inspect
import logging
import threading
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError
from coevo_gym.core.evolution import digest
from coevo_gym.core.seams import Act, Agent, Ticket
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, TokenDecision, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import (
    EnvPool,
    EvalEpisode,
    Finished,
    Lost,
    Runner,
    TrainingEpisode,
    evaluate,
    run_one,
    run_rollout,
)
from coevo_gym.episodes.runner import Mode
from tests.faults import BreaksOn
from tests.toy import BENCHMARK

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
REFERENCES = {task.instruction: task.solution for task in (*TRAIN, *VAL)}
MODES: tuple[Mode, ...] = ("lock_step", "async")
BROKEN = "press the button that breaks the engine"
PATIENCE_S = 60.0
modes = pytest.mark.parametrize("mode", MODES)


def toy() -> gym.Env[str, str]:
    return gym.make("Toy-v0", disable_env_checker=True)


def episodes(n: int) -> list[TrainingEpisode]:
    return [TrainingEpisode(TRAIN[i], seed=i, group_id=f"g{i}") for i in range(n)]


class Fickle:
    """Does all that an agent may do; what it does is a function of the view, and it tells of it."""

    def act(self, views: Sequence[View]) -> list[Act]:
        return [self._one(view) for view in views]

    def _one(self, view: View) -> Act:
        content = [
            view.instruction,
            view.observation,
            [list(map(str, past)) for past in view.history],
        ]
        seen = digest(content)
        number = int(seen, 16) % 40
        if number == 0:
            return Act("", said=seen, end=EndReason.MODEL_LOST)
        if number == 1:
            return Act("", said=seen, end=EndReason.CONTEXT_OVERFLOW)
        if number == 2:
            return Act("", end=EndReason.ABANDONED)
        decision = TokenDecision((number,), (1,), (-0.5,), policy_version=7)
        choices = (*view.info["admissible"], "what is this?")
        action = BROKEN if number == 3 else choices[number % len(choices)]
        return Act(action, decision, f"{seen}: {action}")


def of_each(outcomes: Sequence[Finished[Any] | Lost]) -> dict[int, Any]:
    """What came of each episode, in a form that can be compared."""
    return {
        outcome.index: (outcome.reason, str(outcome.error), outcome.env_steps)
        if isinstance(outcome, Lost)
        else (outcome.record, outcome.env_steps)
        for outcome in outcomes
    }


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, len(TRAIN) - 1), st.integers(0, 9)), max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_outcomes_do_not_depend_on_the_mode_or_pool_size(
    wanted: list[tuple[int, int]], at_once: int, at_once_too: int
) -> None:
    run = [TrainingEpisode(TRAIN[i], seed, "g", 7) for i, seed in wanted]
    results = []
    for mode, size in zip(MODES, (at_once, at_once_too), strict=True):
        envs = EnvPool(lambda: BreaksOn(toy(), BROKEN), max_envs=size)
        results.append(of_each(list(Runner(envs, mode).run(run, Fickle()))))
        envs.close()
    assert results[0] == results[1]
    assert sorted(results[0]) == list(range(len(wanted)))


def test_the_fickle_agent_covers_all_ways_that_episodes_end() -> None:
    envs = EnvPool(lambda: BreaksOn(toy(), BROKEN))
    run = [TrainingEpisode(task, seed) for seed, task in enumerate(TRAIN)]
    outcomes = list(Runner(envs).run(run, Fickle()))
    lost = {outcome.reason for outcome in outcomes if isinstance(outcome, Lost)}
    ends = {outcome.record.end_reason for outcome in outcomes if isinstance(outcome, Finished)}
    assert lost == {EndReason.WORKER_LOST, EndReason.MODEL_LOST, EndReason.ABANDONED}
    assert {EndReason.CONTEXT_OVERFLOW, EndReason.MAX_STEPS, EndReason.FAILED} <= ends


class Pausing(gym.Wrapper[str, str, str, str]):
    """Does something before each step, and keeps in which threads it was stepped."""

    threads: set[int]

    def __init__(self, env: gym.Env[str, str], before: Any = None) -> None:
        super().__init__(env)
        self.threads, self.before = set(), before
        self.closed = self.closed_in_a_step = False

    def step(self, action: str) -> Any:
        assert not self.closed
        self.threads.add(threading.get_ident())
        if self.before is not None:
            self.before(action)
        self.closed_in_a_step |= self.closed
        return super().step(action)

    def close(self) -> None:
        self.closed = True
        super().close()


class InOneThread:
    """An agent that may be asked in the thread that it was made in only."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.thread = agent, threading.get_ident()

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        assert threading.get_ident() == self.thread
        return self.agent.act(views)


class TestAsync:
    def test_engines_work_concurrently_and_outside_the_thread_of_the_agent(self) -> None:
        together = threading.Barrier(3, timeout=PATIENCE_S)
        envs: list[Pausing] = []

        def make() -> gym.Env[str, str]:
            envs.append(Pausing(toy(), lambda action: together.wait()))
            return envs[-1]

        agent = InOneThread(ScriptedAgent(REFERENCES))
        outcomes = list(Runner(EnvPool(make), "async").run(episodes(3), agent))
        assert all(isinstance(outcome, Finished) and outcome.record.success for outcome in outcomes)
        assert threading.get_ident() not in set().union(*(env.threads for env in envs))

    def test_a_slow_engine_does_not_delay_other_episodes(self) -> None:
        slow, others_are_done = TRAIN[0], threading.Event()

        def make() -> gym.Env[str, str]:
            env = toy()

            def wait(action: str) -> None:
                bare = env.unwrapped
                assert isinstance(bare, TaskEnv)
                if bare.task == slow:
                    assert others_are_done.wait(PATIENCE_S)

            return Pausing(env, wait)

        order = []
        for outcome in Runner(EnvPool(make), "async").run(episodes(4), ScriptedAgent(REFERENCES)):
            order.append(outcome.index)
            if len(order) == 3:
                others_are_done.set()
        assert sorted(order[:3]) == [1, 2, 3]
        assert order[3] == 0

    def test_no_env_is_closed_while_it_takes_a_step(self) -> None:
        envs: list[Pausing] = []
        entered, left = threading.Event(), threading.Event()

        def make() -> gym.Env[str, str]:
            env = toy()

            def linger(action: str) -> None:
                assert isinstance(env.unwrapped, TaskEnv)
                if env.unwrapped.task == TRAIN[0]:
                    entered.set()
                    assert left.wait(PATIENCE_S)
                assert entered.wait(PATIENCE_S)

            envs.append(Pausing(env, linger))
            return envs[-1]

        running = Runner(EnvPool(make), "async").run(episodes(2), ScriptedAgent(REFERENCES))
        assert next(running).index == 1
        threading.Timer(0.05, left.set).start()
        running.close()  # type: ignore[attr-defined]
        assert left.is_set()
        assert not any(env.closed_in_a_step for env in envs)
        assert any(env.closed for env in envs)


@modes
class TestBothModes:
    def test_a_lost_engine_does_not_affect_other_episodes(self, mode: Mode) -> None:
        pool = EnvPool(lambda: BreaksOn(toy(), BROKEN))
        run = episodes(5)
        doomed = REFERENCES | {TRAIN[2].instruction: (TRAIN[2].solution[0], BROKEN)}
        healthy = of_each(list(Runner(pool, mode).run(run, ScriptedAgent(REFERENCES))))
        outcomes = of_each(list(Runner(pool, mode).run(run, ScriptedAgent(doomed))))
        assert outcomes.pop(2) == (EndReason.WORKER_LOST, "the engine is gone", 2)
        assert outcomes == {index: one for index, one in healthy.items() if index != 2}
        pool.close()

    def test_an_engine_that_does_not_start_loses_only_its_own_episode(
        self, mode: Mode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reset(self: Any, **kwargs: Any) -> Any:
            if kwargs["options"]["task"] == TRAIN[0]:
                raise EnvBackendError("no engine")
            return gym.Wrapper.reset(self, **kwargs)

        monkeypatch.setattr(BreaksOn, "reset", reset, raising=False)
        pool = EnvPool(lambda: BreaksOn(toy(), BROKEN), max_envs=2)
        outcomes = list(Runner(pool, mode).run(episodes(4), ScriptedAgent(REFERENCES)))
        lost = [one for one in outcomes if isinstance(one, Lost)]
        assert [(one.index, one.reason, one.env_steps) for one in lost] == [
            (0, EndReason.WORKER_LOST, 0)
        ]
        assert {one.index for one in outcomes if isinstance(one, Finished)} == {1, 2, 3}

    def test_an_abandoned_episode_is_not_graded_and_its_env_is_reused(
        self, mode: Mode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        envs: list[gym.Env[str, str]] = []

        def make() -> gym.Env[str, str]:
            envs.append(toy())
            return envs[-1]

        class GivesUp:
            def act(self, views: Sequence[View]) -> list[Act]:
                return [
                    Act("", said="no way on", end=EndReason.ABANDONED) if view.history else
                    Act("press red") for view in views
                ]  # fmt: skip

        graded: list[object] = []
        monkeypatch.setattr("tests.toy.ToyEnv._grade", lambda *args: graded.append(args))
        pool = EnvPool(make, max_envs=1)
        with caplog.at_level(logging.WARNING):
            outcomes = of_each(list(Runner(pool, mode).run(episodes(3), GivesUp())))
        assert set(outcomes.values()) == {(EndReason.ABANDONED, "no way on", 1)}
        assert (len(envs), graded, caplog.records) == (1, [], [])

    def test_a_programming_error_in_an_env_is_raised_and_the_envs_are_closed(
        self, mode: Mode
    ) -> None:
        closed: list[bool] = []

        class Odd(gym.Wrapper[str, str, str, str]):
            def step(self, action: str) -> Any:
                raise KeyError("a mistake in an env")

            def close(self) -> None:
                closed.append(True)

        pool = EnvPool(lambda: Odd(toy()))
        with pytest.raises(KeyError, match="a mistake in an env"):
            list(Runner(pool, mode).run(episodes(3), ScriptedAgent(REFERENCES)))
        assert closed == [True] * 3

    def test_stopping_early_leaves_no_env_open(self, mode: Mode) -> None:
        envs: list[Pausing] = []

        def make() -> gym.Env[str, str]:
            envs.append(Pausing(toy()))
            return envs[-1]

        pool = EnvPool(make, max_envs=2)
        running = Runner(pool, mode).run(episodes(6), ScriptedAgent(REFERENCES))
        next(running)
        running.close()  # type: ignore[attr-defined]
        pool.close()
        assert all(env.closed for env in envs)

    def test_two_runs_may_share_a_pool(self, mode: Mode) -> None:
        pool = EnvPool(lambda: Pausing(toy()), max_envs=2)
        agent = ScriptedAgent(REFERENCES)
        first, second = (Runner(pool, mode).run(episodes(5), agent) for _ in range(2))
        pairs = list(zip(first, second, strict=True))
        assert len(pairs) == 5
        assert all(isinstance(one, Finished) for pair in pairs for one in pair)

    def test_a_wrapper_that_steps_twice_is_refused(self, mode: Mode) -> None:
        class Twice(gym.Wrapper[str, str, str, str]):
            def step(self, action: str) -> Any:
                self.env.step(action)
                return self.env.step(action)

        pool = EnvPool(lambda: Twice(toy()))
        with pytest.raises(ConfigError, match=r"took 1 steps, but the unwrapped env took 2"):
            list(Runner(pool, mode).run(episodes(1), ScriptedAgent(REFERENCES)))

    def test_rollouts_and_evaluations_are_the_same_in_both_modes(
        self, mode: Mode, envs: EnvPool
    ) -> None:
        agent = ScriptedAgent(REFERENCES)
        tickets = [Ticket(f"t{i}", TRAIN[i], f"g{i // 2}", i % 2) for i in range(6)]
        assert run_rollout(tickets, agent, envs, mode=mode) == run_rollout(tickets, agent, envs)
        counts: list[int] = []
        evaluation = evaluate(agent, VAL[:6], envs, on_done=counts.append, mode=mode)
        assert evaluation == evaluate(agent, VAL[:6], envs)
        assert counts == [1, 2, 3, 4, 5, 6]


@modes
def test_each_step_has_the_wall_time_of_its_answer_and_of_the_env(mode: Mode) -> None:
    class Timed:
        """Knows how long its answer for the first task took, and nothing about others."""

        def act(self, views: Sequence[View]) -> list[Act]:
            acts = ScriptedAgent(REFERENCES).act(views)
            first = [view.instruction == TRAIN[0].instruction for view in views]
            return [
                act._replace(answer_s=7.0) if own else act
                for act, own in zip(acts, first, strict=True)
            ]

    outcomes = list(Runner(EnvPool(toy, max_envs=2), mode).run(episodes(3), Timed()))
    for outcome in outcomes:
        assert isinstance(outcome, Finished)
        for step in outcome.record.steps:
            assert step.answer_s is not None
            assert (step.answer_s == 7.0) == (outcome.index == 0)
            assert step.env_s is not None
            assert step.env_s >= 0


def test_an_unknown_mode_is_refused(envs: EnvPool) -> None:
    with pytest.raises(ConfigError, match="mode must be 'lock_step' or 'async', got 'fast'"):
        Runner(envs, "fast")  # type: ignore[arg-type]


def test_a_training_episode_of_a_validation_task_is_refused(envs: EnvPool) -> None:
    with pytest.raises(SplitLeakError, match="val task"):
        TrainingEpisode(VAL[0], seed=0)
    outcome = run_one(EvalEpisode(VAL[0], seed=0), ScriptedAgent(REFERENCES), envs)
    assert isinstance(outcome, Finished)
    assert type(outcome.record) is EvalTrajectory


def test_a_training_episode_gives_a_training_record(envs: EnvPool) -> None:
    wanted = TrainingEpisode(TRAIN[0], seed=3, group_id="g", policy_version=4)
    outcome = run_one(wanted, ScriptedAgent(REFERENCES), envs)
    assert isinstance(outcome, Finished)
    assert type(outcome.record) is Trajectory
    assert (outcome.record.group_id, outcome.record.policy_version) == ("g", 4)
    assert (outcome.index, outcome.env_steps) == (0, 4)


def test_an_evaluation_accepts_no_guidance_for_an_agent() -> None:
    known = {"agent", "tasks", "envs", "seed", "samples", "results", "on_done", "mode", "admission"}
    assert set(inspect.signature(evaluate).parameters) == known
    assert {field.name for field in dataclasses.fields(EvalEpisode)} == {"task", "seed"}
