"""The simulated learner: skill strengths, task memories, and the exact policy gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.task import Task
from coevo_gym.trainers.advantages import relative_to_group
from simulated.benchmark import world_of
from simulated.worlds import WorldConfig

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]

_BETAS = 0.9, 0.99
_ADAM_EPS = 1e-3


class Chains(NamedTuple):
    """Tasks as arrays, padded to the same length."""

    skills: Rows  # (n, L) skill of each step
    asked: Flags  # (n, L) True for existing steps
    difficulty: Numbers  # (n,)


class Rollouts(NamedTuple):
    """Sampled episodes: K for each of G tasks, each of which requires at most L skills."""

    rows: Rows  # (G,) row of each task
    chances: Numbers  # (G, L) probability that each step succeeds
    tried: Flags  # (G, K, L) True for steps that were reached
    passed: Flags  # (G, K, L) True for steps that succeeded
    rewards: Numbers  # (G, K) 1 or 0

    @property
    def n_used(self) -> Rows:
        """The number of skills used successfully in each episode, as a (G, K) array."""
        counts: Rows = self.passed.sum(axis=2)
        return counts


def sigmoid(x: Numbers) -> Numbers:
    """Compute 1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def gradient(rollouts: Rollouts) -> Numbers:
    """Compute the gradient of GRPO's objective with respect to each step's logit.

    The policy is a chain of coins, so the score function is exact: each reached step adds
    advantage x (passed - chance). Advantages are computed as for all learners.

    Returns:
        (G, L) gradients, averaged over a group's K episodes.
    """
    advantages = np.array([relative_to_group(row) for row in rollouts.rewards.tolist()])
    scores = np.where(rollouts.tried, rollouts.passed - rollouts.chances[:, None, :], 0.0)
    return np.asarray((advantages[:, :, None] * scores).mean(axis=1))


class SkillLearner:
    """A simulated learner with skill strengths shared by all tasks, and a memory for each task.

    The initial strengths are drawn from ``rng``.
    """

    def __init__(self, world: WorldConfig, rng: Generator) -> None:
        self.world = world
        self.strengths: Numbers = rng.normal(world.mean_strength, world.sd_strength, world.n_skills)
        self._first = self.strengths.copy()
        self._momentum, self._square = np.zeros(world.n_skills), np.zeros(world.n_skills)
        self.version = 0
        self._row: dict[str, int] = {}
        self._chains = chains_of((), world.max_length)
        self._broken: Flags = np.zeros(0, dtype=bool)
        self._coin: Flags = np.zeros(0, dtype=bool)
        self.memories: Numbers = np.zeros(0)

    def add_memories(self, tasks: Sequence[Task]) -> None:
        """Create a memory in the learner for each task that it has not seen before."""
        new = [task for task in tasks if task.id not in self._row]
        self._row |= {task.id: row for row, task in enumerate(new, len(self._row))}
        worlds = [world_of(task) for task in new]
        chains = chains_of(
            [(world.skills, world.difficulty) for world in worlds], self.world.max_length
        )
        both = zip(self._chains, chains, strict=True)
        self._chains = Chains(*(np.concatenate(pair) for pair in both))
        broken, coin = ([getattr(world, name) for world in worlds] for name in ("broken", "coin"))
        self._broken = np.concatenate([self._broken, np.array(broken, dtype=bool)])
        self._coin = np.concatenate([self._coin, np.array(coin, dtype=bool)])
        self.memories = np.concatenate([self.memories, np.zeros(len(new))])

    def sample_rollouts(self, tasks: Sequence[Task], n_episodes: int, rng: Generator) -> Rollouts:
        """Sample ``n_episodes`` episodes for each task, all at once.

        Tasks may repeat.
        """
        rows = np.array([self._row[task.id] for task in tasks])
        skills, asked, difficulty = (part[rows] for part in self._chains)
        logits = self.strengths[skills] + (self.memories[rows] - difficulty)[:, None]
        chances = sigmoid(logits)
        lucky = rng.random((len(rows), n_episodes, skills.shape[1])) < chances[:, None, :]
        lucky[self._broken[rows], :, 0] = False
        passed = np.logical_and.accumulate(lucky, axis=2) & asked[:, None, :]
        before = np.concatenate([np.ones_like(passed[:, :, :1]), passed[:, :, :-1]], axis=2)
        solved = passed.sum(axis=2) == asked.sum(axis=1)[:, None]
        flips = rng.random(solved.shape) < 0.5
        rewards = np.where(self._coin[rows, None], flips, solved)
        return Rollouts(
            rows, chances, before & asked[:, None, :], passed, rewards.astype(np.float64)
        )

    def learn(self, rollouts: Rollouts) -> None:
        """Update the skill strengths and the task memories from rollouts."""
        world, skills = self.world, self._chains.skills[rollouts.rows]
        by_step = gradient(rollouts)
        total = np.zeros(world.n_skills)
        np.add.at(total, skills, by_step * (1 - world.memory) / len(rollouts.rows))
        np.add.at(self.memories, rollouts.rows, world.memory * by_step.sum(axis=1))
        self.version += 1
        fast, slow = _BETAS
        self._momentum = fast * self._momentum + (1 - fast) * total
        self._square = slow * self._square + (1 - slow) * total**2
        mean = self._momentum / (1 - fast**self.version)
        spread = np.sqrt(self._square / (1 - slow**self.version))
        self.strengths = self.strengths + world.lr * mean / (spread + _ADAM_EPS)
        self.strengths += world.decay * (self._first - self.strengths)

    def success_on(self, chains: Chains, *, greedy: bool = True) -> float:
        """Return the learner's mean success rate over all tasks, with greedy or sampled actions."""
        logits = self.strengths[chains.skills] - chains.difficulty[:, None]
        if greedy:
            return float(((logits > 0) | ~chains.asked).all(axis=1).mean())
        return float(np.where(chains.asked, sigmoid(logits), 1.0).prod(axis=1).mean())


def chains_of(tasks: Sequence[tuple[Sequence[int], float]], max_length: int) -> Chains:
    """Convert the skills and difficulties of tasks to arrays."""
    skills = np.zeros((len(tasks), max_length), dtype=np.int64)
    asked = np.zeros((len(tasks), max_length), dtype=bool)
    for row, (chain, _) in enumerate(tasks):
        skills[row, : len(chain)] = chain
        asked[row, : len(chain)] = True
    return Chains(skills, asked, np.array([difficulty for _, difficulty in tasks], dtype=float))
