"""Generators of simulated tasks: random tasks, variations of a task, or tasks for given skills."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.evolution import Context, Draft
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.explorer import Exploration
from coevo_gym.curricula.pool.task_pool import require_train_split
from coevo_gym.curricula.signals import UNGUIDED
from simulated.benchmark import (
    NAME,
    SkillVerifier,
    SkillWorld,
    instruction_of,
    scenario_of,
    skill_of,
    use_action,
    world_of,
)
from simulated.learner import Chains, chains_of
from simulated.worlds import WorldConfig

EASY = -8.0
"""Difficulty of a task that any learner solves."""


class SkillExplorer:
    """An explorer for simulated tasks.

    Without guidance, it creates a task from randomly drawn skills. From a context, it varies the
    context's task. For a target, it creates a task with the target's skills, using each of them
    with probability ``compliance``. A draft may randomly be broken, trivial or rewarded by a coin
    flip. The generator ``rng`` determines how often each skill is drawn.
    """

    concurrency = 1

    def __init__(self, world: WorldConfig, rng: Generator) -> None:
        self.world = world
        weights = rng.permutation(np.arange(1, world.n_skills + 1) ** -world.skew)
        unknown = rng.random(world.n_skills) > world.known_skills
        weights = np.where(unknown, weights * world.seldom, weights)
        self._cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """Return one exploration per context. Each exploration contains one draft."""
        return [self._explore(*each) for each in zip(contexts, rngs, strict=True)]

    def draw_native_tasks(self, n: int, rng: Generator) -> tuple[Task, ...]:
        """Return native training tasks that use skills known to the generator."""
        return tuple(self._draw_native_task(rng) for _ in range(n))

    def _explore(self, context: Context, rng: Generator) -> Exploration:
        task = require_train_split(context.task, "explore from")
        if context.target:
            world = self._draw_targeted_world(context.target, rng)
        elif context.kind == UNGUIDED:
            world = self._draw_world(rng)
        else:
            world = self._vary_world(world_of(task), rng)
        draft = Draft(
            benchmark=NAME,
            scenario=scenario_of(world.skills),
            instruction=instruction_of(world),
            world=world,
            solution=tuple(map(use_action, world.skills)),
            parents=(task.id,),
            context_id=context.id,
        )
        return Exploration((draft,), self.world.explore_steps)

    def _draw_world(self, rng: Generator) -> SkillWorld:
        length = int(rng.integers(1, self.world.max_length + 1))
        return self._make_world(self._draw_skills(length, rng), self._draw_difficulty(rng), rng)

    def _vary_world(self, near: SkillWorld, rng: Generator) -> SkillWorld:
        world = self.world
        length = len(near.skills) + int(rng.integers(-1, 2))
        length = min(world.max_length, max(1, length))
        mask = rng.random(length) >= world.mutation
        others = self._draw_skills(length, rng)
        chain = [
            near.skills[at] if keep and at < len(near.skills) else other
            for at, (keep, other) in enumerate(zip(mask, others, strict=True))
        ]
        like = 1 - world.drift
        difficulty = like * near.difficulty + math.sqrt(1 - like**2) * self._draw_difficulty(rng)
        return self._make_world(chain, difficulty, rng)

    def _draw_targeted_world(self, target: Sequence[str], rng: Generator) -> SkillWorld:
        others = self._draw_skills(len(target), rng)
        heeded = rng.random(len(target)) < self.world.compliance
        chain = [
            skill_of(tag) if heed else other
            for tag, heed, other in zip(target, heeded, others, strict=True)
        ]
        return self._make_world(chain, self._draw_difficulty(rng), rng)

    def _make_world(self, chain: Sequence[int], difficulty: float, rng: Generator) -> SkillWorld:
        world = self.world
        broken, coin, trivial = rng.random(3) < (world.unsolvable, world.coin, world.trivial)
        return SkillWorld(
            skills=tuple(chain),
            difficulty=EASY if trivial else difficulty,
            wander_steps=world.wander_steps,
            broken=bool(broken),
            coin=bool(coin),
        )

    def _draw_skills(self, n: int, rng: Generator) -> list[int]:
        """Draw skills with replacement."""
        skills: list[int] = np.searchsorted(self._cumulative, rng.random(n)).tolist()
        return skills

    def _draw_difficulty(self, rng: Generator) -> float:
        return float(rng.normal(0.0, self.world.sd_difficulty))

    def _draw_native_task(self, rng: Generator) -> Task:
        world = self._draw_world(rng)
        return Task(
            benchmark=NAME,
            name=f"{NAME}/native/{rng.integers(2**63):x}",
            split=Split.TRAIN,
            scenario=scenario_of(world.skills),
            instruction=instruction_of(world),
            world=world,
            verifier=SkillVerifier(n_skills=len(world.skills)),
            solution=tuple(map(use_action, world.skills)),
        )


def draw_held_out(world: WorldConfig, n: int, rng: Generator) -> Chains:
    """Draw held-out tasks in which all skills are equally likely. None is broken or trivial."""
    lengths = rng.integers(1, world.max_length + 1, size=n)
    difficulty = rng.normal(0.0, world.sd_difficulty, size=n)
    chains = [rng.integers(world.n_skills, size=length).tolist() for length in lengths]
    return chains_of(list(zip(chains, difficulty.tolist(), strict=True)), world.max_length)
