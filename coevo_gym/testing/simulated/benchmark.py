"""Chains of skills as a benchmark: its tasks, and how they are built and replayed.

Only :func:`register` registers it, so that it is not listed among the playable benchmarks.
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
"""Action of the agent when a skill fails."""


class SkillWorld(World):
    """The initial state of a task's engine.

    Attributes:
        skills: skills to use, in order.
        difficulty: difficulty subtracted from the strength of each skill.
        wander_steps: number of env steps by which an episode continues after a failed step.
        broken: True if the first skill always fails.
        coin: True if the reward is a coin flip.
    """

    skills: tuple[int, ...] = Field(min_length=1)
    difficulty: float
    wander_steps: int = 0
    broken: bool = False
    coin: bool = False


class SkillVerifier(Verifier):
    """A verifier that checks that all skills of the task were used.

    Attributes:
        n_skills: number of skills.
    """

    n_skills: int


def use(skill: int) -> str:
    """Return the action that uses a skill.

    Example:
        >>> use(7)
        'use skill 7'
    """
    return f"use skill {skill}"


def tag_of(skill: int) -> str:
    """Return the tag of tasks that require a skill.

    Example:
        >>> tag_of(7)
        'skill:7'
    """
    return f"skill:{skill}"


def skill_of(tag: str) -> int:
    """Return the skill of a tag created by :func:`tag_of`."""
    return int(tag.removeprefix("skill:"))


def scenario_of(skills: Sequence[int], split: Split = Split.TRAIN) -> str:
    """Return the scenario of a chain: its split and its first skill."""
    return f"{split}/{skills[0]}"


def instruction_of(world: SkillWorld) -> str:
    """Return the agent's instruction."""
    chain = ", ".join(map(str, world.skills))
    return f"Use the skills {chain}. Difficulty: {world.difficulty:.3f}."


class SkillBenchmark:
    """A benchmark of chains of skills, with the interface of all benchmarks.

    Args:
        native: native training tasks.
    """

    name, env_id = NAME, ENV_ID
    subsets: tuple[str, ...] = ()

    def __init__(self, native: Sequence[Task] = ()) -> None:
        self._native = tuple(native)

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Return the native tasks of a split; held-out tasks exist only as numbers."""
        if subset is not None:
            raise TaskError(f"{self.name} has no subset {subset!r}")
        return self._native if parse_split(split) is Split.TRAIN else ()

    def split_of(self, scenario: str) -> Split:
        """Return the split that a scenario names."""
        return Split(scenario.partition("/")[0])

    def side_of(self, task: Task) -> Split:
        """Return the split that the task's scenario names."""
        return self.split_of(task.scenario)

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return the tags of the required skills."""
        return tuple(sorted({tag_of(skill) for skill in world_of(task).skills}))

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Return nothing, because only the benchmark's own explorer creates drafts."""
        return ()

    def build(self, draft: Draft) -> Task:
        """Build the task of a draft; only replays find out if it can be solved."""
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
        """Replay actions; a skill used in order never fails here, unless the task is broken."""
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
        """Return the skills, all of which the instruction names."""
        said = task.instruction
        skills = map(str, world_of(task).skills)
        return Evidence(said, tuple(Clue("a skill", (skill,), said) for skill in skills))

    def choices(self, view: View) -> tuple[str, ...]:
        """Return the next skill and the fumble action."""
        return tuple(view.info["admissible"])

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return the task's solution."""
        return task.solution

    def symbol(self, step: Step) -> str:
        """Return success or failure only; with skill names, every behaviour would be rare."""
        return "!" if step.error_kind else "used"


def world_of(task: Task | Draft) -> SkillWorld:
    """Return the world of a task.

    Raises:
        TaskError: if the task belongs to another benchmark.
    """
    if not isinstance(task.world, SkillWorld):
        raise TaskError(f"{task.instruction!r} is not a chain of skills.")
    return task.world


BENCHMARK = SkillBenchmark()
make_vec = functools.partial(TaskVectorEnv, ENV_ID)


def register() -> None:
    """Register the benchmark in this process, because signals and tags look it up by name."""
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
