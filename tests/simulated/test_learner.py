"""The simulated learner: its gradient, what it remembers, and what its episodes look like."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from simulated.benchmark import (
    ENV_ID,
    FUMBLE,
    SkillBenchmark,
    SkillVerifier,
    SkillWorld,
    make_trajectory,
    register,
    use_action,
)
from simulated.learner import Rollouts, SkillLearner, chains_of, gradient, sigmoid
from simulated.worlds import WorldConfig

from coevo_gym.core.task import Split, Task
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.trainers.advantages import relative_to_group

SMALL = WorldConfig(n_skills=6, max_length=3, env_steps=2_000)


def task_of(*skills: int, difficulty: float = 0.0, **world: object) -> Task:
    register()
    chain = SkillWorld.model_validate({"skills": skills, "difficulty": difficulty, **world})
    return Task(
        benchmark="simulated",
        name=f"{skills} {difficulty} {world}",
        split=Split.TRAIN,
        scenario=f"train/{skills[0]}",
        instruction=f"{skills} {difficulty}",
        world=chain,
        verifier=SkillVerifier(n_skills=len(skills)),
        solution=tuple(map(use_action, skills)),
    )


def learner_of(world: WorldConfig = SMALL, *, seed: int = 0) -> SkillLearner:
    return SkillLearner(world, np.random.default_rng(seed))


def objective(logits: np.ndarray, rollouts: Rollouts) -> np.ndarray:
    """(G,) what the gradient is of: mean advantage x log-probability, step by step."""
    chances = sigmoid(logits)[:, None, :]
    logprobs = np.where(rollouts.passed, np.log(chances), np.log(1 - chances))
    by_episode = np.where(rollouts.tried, logprobs, 0.0).sum(axis=2)
    advantages = np.array([relative_to_group(row) for row in rollouts.rewards.tolist()])
    return np.asarray((advantages * by_episode).mean(axis=1))


def test_the_gradient_equals_the_numeric_gradient_of_the_objective() -> None:
    learner = learner_of()
    tasks = [task_of(0, 1, 2), task_of(3), task_of(4, 4), task_of(5, 0, difficulty=1.0)]
    learner.add_memories(tasks)
    rollouts = learner.sample_rollouts(tasks, 8, np.random.default_rng(1))
    assert 0 < rollouts.rewards.mean() < 1
    logits = np.log(rollouts.chances / (1 - rollouts.chances))
    numeric, h = np.zeros_like(logits), 1e-5
    for step in range(logits.shape[1]):
        moved = np.zeros_like(logits)
        moved[:, step] = h
        up, down = objective(logits + moved, rollouts), objective(logits - moved, rollouts)
        numeric[:, step] = (up - down) / (2 * h)
    assert np.abs(numeric).max() > 0.01
    np.testing.assert_allclose(gradient(rollouts), numeric, atol=1e-8)


def test_a_step_succeeds_with_its_stated_chance() -> None:
    learner = learner_of()
    learner.strengths[:2] = 1.0, -0.5
    task = task_of(0, 1, difficulty=0.25)
    learner.add_memories([task])
    learner.memories[0] = 0.5
    rollouts = learner.sample_rollouts([task], 20_000, np.random.default_rng(0))
    first, second = sigmoid(np.array([1.25, -0.25]))
    assert rollouts.chances[0, :2] == pytest.approx([first, second])
    assert rollouts.rewards.mean() == pytest.approx(first * second, abs=0.02)
    assert rollouts.tried[0, :, 1].mean() == pytest.approx(first, abs=0.02)
    assert not rollouts.tried[0, :, 2].any()


def test_learning_improves_shared_skills_or_the_memory_of_one_task() -> None:
    for memory in (0.0, 1.0):
        learner = learner_of(SMALL.model_copy(update={"memory": memory}))
        task, other = task_of(0, 1), task_of(0, 1, difficulty=0.1)
        learner.add_memories([task, other])
        before, rng = learner.strengths.copy(), np.random.default_rng(0)
        for _ in range(20):
            learner.learn(learner.sample_rollouts([task], 8, rng))
        assert np.array_equal(learner.strengths[2:], before[2:])
        assert learner.memories[1] == 0
        assert (learner.strengths[0] > before[0]) == (memory == 0.0)
        assert (learner.memories[0] > 0) == (memory == 1.0)


def test_unpractised_skills_decay_towards_their_start() -> None:
    learner = learner_of(SMALL.model_copy(update={"decay": 0.1}))
    broken = task_of(0, broken=True)
    learner.add_memories([broken])
    first = learner.strengths.copy()
    learner.strengths = first + 1.0
    learner.learn(learner.sample_rollouts([broken], 8, np.random.default_rng(0)))
    np.testing.assert_allclose(learner.strengths, first + 0.9)


def test_a_broken_task_is_never_solved_and_a_coin_task_half_the_time() -> None:
    learner = learner_of()
    learner.strengths[:] = 20.0
    broken, coin = task_of(0, broken=True), task_of(0, 1, coin=True)
    learner.add_memories([broken, coin])
    rollouts = learner.sample_rollouts([broken, coin], 2_000, np.random.default_rng(0))
    assert rollouts.rewards[0].max() == 0
    assert rollouts.n_used[1].min() == 2
    assert rollouts.rewards[1].mean() == pytest.approx(0.5, abs=0.05)


def test_success_is_greedy_by_default_and_otherwise_an_expectation() -> None:
    learner = learner_of()
    learner.strengths[:] = 1.0
    chains = chains_of([((0, 1), 0.0), ((2,), 0.5), ((3, 4, 5), 1.5)], 3)
    assert learner.success_on(chains) == pytest.approx(2 / 3)
    p, q, r = sigmoid(np.array([1.0, 0.5, -0.5]))
    assert learner.success_on(chains, greedy=False) == pytest.approx((p**2 + q + r**3) / 3)


@pytest.mark.parametrize("wander_steps", [0, 3])
@pytest.mark.parametrize("n_used", [0, 1, 2])
def test_simulated_episodes_equal_those_recorded_by_the_env(n_used: int, wander_steps: int) -> None:
    task = task_of(3, 4, wander_steps=wander_steps)
    assert isinstance(task.world, SkillWorld)
    env = gym.make(ENV_ID, disable_env_checker=True).unwrapped
    env.reset(options={"task": task})
    over, actions = False, list(task.solution[:n_used])
    while not over:
        *_, over, _, info = env.step(actions.pop(0) if actions else FUMBLE)
    played = trajectory_of(env, group_id="g", policy_version=7)
    solved = n_used == 2
    assert info["success"] is solved
    record = make_trajectory(task.id, task.world, n_used, solved, group_id="g", version=7)
    assert record == played


def test_a_replay_does_not_solve_a_broken_task() -> None:
    benchmark = SkillBenchmark()
    for task, solved in ((task_of(1, 2), True), (task_of(1, 2, broken=True), False)):
        assert benchmark.replay(task, task.solution).solves is solved
        assert benchmark.replay(task, ()).scores == (0.0,)
    assert benchmark.replay(
        task_of(1, 2), (use_action(1), FUMBLE, use_action(2)), to_error=True
    ).errors == (
        "",
        "the skill fails",
    )
