"""Chains of skills as a benchmark: its tasks, how they are built and replayed.

It is registered by :func:`register` alone, so that nobody finds it among those to be played.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from numpy.random import Generator
from pydantic import Field

from coevo_gym.core.benchmark import (
    BenchmarkSpec,
    Clue,
    Effect,
    Evidence,
    Replay,
    register_benchmark,
)
from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Context, Draft
from coevo_gym.core.task import Split, Task, Verifier, World, parse_split
from coevo_gym.core.trajectory import Step, Trajectory, View
from coevo_gym.envs.vector import TaskVectorEnv

NAME, ENV_ID = "simulated", "CoEvolve-Simulated-v0"
FUMBLE = "fumble"
"""What the agent does where a skill fails it."""


class SkillWorld(World):
    """What the engine of a task starts from.

    Attributes:
        skills: to be used in this order.
        difficulty: what they have to be strong enough for.
        wander_steps: env steps that an episode goes on for after a step that failed.
        broken: whether the first skill fails everybody.
        coin: whether the reward is a coin flip.
    """

    skills: tuple[int, ...] = Field(min_length=1)
    difficulty: float
    wander_steps: int = 0
    broken: bool = False
    coin: bool = False


class SkillVerifier(Verifier):
    """The task is solved when all of its skills were used.

    Attributes:
        n_skills: how many.
    """

    n_skills: int


def use(skill: int) -> str:
    """The action that uses a skill.

    Example:
        >>> use(7)
        'use skill 7'
    """
    return f"use skill {skill}"


def tag_of(skill: int) -> str:
    """The tag of tasks that ask for a skill.

    Example:
        >>> tag_of(7)
        'skill:7'
    """
    return f"skill:{skill}"


def skill_of(tag: str) -> int:
    """The skill of a :func:`tag_of`."""
    return int(tag.removeprefix("skill:"))


def scenario_of(skills: Sequence[int], split: Split = Split.TRAIN) -> str:
    """The scenario of a chain: its side of the border, and its first skill."""
    return f"{split}/{skills[0]}"


def instruction_of(world: SkillWorld) -> str:
    """What the agent is asked to do."""
    chain = ", ".join(map(str, world.skills))
    return f"Use the skills {chain}. Difficulty: {world.difficulty:.3f}."


class SkillBenchmark:
    """Chains of skills, seen as all benchmarks are.

    Args:
        native: the training tasks that come with it.
    """

    name, env_id = NAME, ENV_ID
    subsets: tuple[str, ...] = ()

    def __init__(self, native: Sequence[Task] = ()) -> None:
        self._native = tuple(native)

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Native tasks of a split; held-out tasks are numbers, and never tasks."""
        if subset is not None:
            raise TaskError(f"{self.name} has no subset {subset!r}")
        return self._native if parse_split(split) is Split.TRAIN else ()

    def split_of(self, scenario: str) -> Split:
        """The side of the border that a scenario names."""
        return Split(scenario.partition("/")[0])

    def side_of(self, task: Task) -> Split:
        """The side of the border that the task's scenario names."""
        return self.split_of(task.scenario)

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """The skills that are asked for."""
        return tuple(sorted({tag_of(skill) for skill in world_of(task).skills}))

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """None: its own explorer alone makes drafts."""
        return ()

    def build(self, draft: Draft) -> Task:
        """The task that a draft claims to be; whether it can be solved, replays find out."""
        world = world_of(draft)
        return Task(
            benchmark=self.name,
            split=self.split_of(draft.scenario),
            scenario=draft.scenario,
            instruction=draft.instruction,
            world=world,
            verifier=SkillVerifier(n_skills=len(world.skills)),
            solution=draft.solution,
            origin="evolved",
            parents=draft.parents,
        )

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Run actions; a skill that is used in its turn never fails here, unless it is broken."""
        world = world_of(task)
        used, errors = [0], list[str]()
        for action in actions:
            at = used[-1]
            turn = at < len(world.skills) and action == use(world.skills[at])
            failed = not turn or (world.broken and not at)
            errors.append("the skill fails" if failed else "")
            used.append(at if failed else at + 1)
            if failed and to_error:
                break
        states = tuple(f"{at} used" for at in used)
        return Replay(
            errors=tuple(errors),
            scores=tuple(float(at == len(world.skills)) for at in used),
            fingerprint=states[-1],
            effects=tuple(Effect.NOTHING if error else Effect.CHANGED for error in errors),
            states=states,
            shown=states[1:],
        )

    def evidence(self, task: Task) -> Evidence:
        """The skills, all of which the instruction names."""
        said = task.instruction
        skills = map(str, world_of(task).skills)
        return Evidence(said, tuple(Clue("a skill", (skill,), said) for skill in skills))

    def choices(self, view: View) -> tuple[str, ...]:
        """The skill whose turn it is, or to fumble."""
        return tuple(view.info["admissible"])

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Its solution."""
        return task.solution

    def symbol(self, step: Step) -> str:
        """Only whether a step failed: with the skills themselves, every behaviour were rare."""
        return "!" if step.error_kind else "used"


def world_of(task: Task | Draft) -> SkillWorld:
    """The world of a task.

    Raises:
        TaskError: if it is another benchmark's.
    """
    if not isinstance(task.world, SkillWorld):
        raise TaskError(f"{task.instruction!r} is no chain of skills.")
    return task.world


BENCHMARK = SkillBenchmark()
make_vec = functools.partial(TaskVectorEnv, ENV_ID)


def register() -> None:
    """Make the benchmark known in this process; signals and tags ask for it by its name."""
    room = __name__.rpartition(".")[0]
    register_benchmark(
        BenchmarkSpec(
            name=NAME,
            env_id=ENV_ID,
            benchmark=f"{__name__}:BENCHMARK",
            env=f"{room}.env:SkillEnv",
            world=f"{__name__}:SkillWorld",
            verifier=f"{__name__}:SkillVerifier",
            title="use skills in order; a simulation, not for playing",
        )
    )
