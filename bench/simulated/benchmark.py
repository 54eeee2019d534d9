"""A simulated benchmark whose tasks are chains of skills.

Only :func:`register` registers it, so it is not listed among the playable benchmarks. The
simulation does not step the env. It computes the outcomes of all of an update's episodes at once,
and creates the same records as the env would; a test checks that both agree.
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
from coevo_gym.core.task import FrozenDict, Split, Task, Verifier, World, parse_split
from coevo_gym.core.trajectory import EndReason, Step, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv

NAME, ENV_ID = "simulated", "CoEvolve-Simulated-v0"
FUMBLE = "fumble"
"""The agent's action when a skill fails."""


class SkillWorld(World):
    """The initial state of the engine that simulates a task.

    Attributes:
        skills: skills to use, in order.
        difficulty: number subtracted from the strength of each skill.
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
    """A verifier that checks that all of the task's skills were used."""

    n_skills: int


def use_action(skill: int) -> str:
    """Return the action that uses a skill, such as ``use skill 7``."""
    return f"use skill {skill}"


def tag_of(skill: int) -> str:
    """Return the tag for tasks that require a skill, such as ``skill:7``."""
    return f"skill:{skill}"


def skill_of(tag: str) -> int:
    """Return the skill that a tag created by :func:`tag_of` refers to."""
    return int(tag.removeprefix("skill:"))


def scenario_of(skills: Sequence[int], split: Split = Split.TRAIN) -> str:
    """Return the scenario name of a skill chain: its split and first skill, as in ``train/7``."""
    return f"{split}/{skills[0]}"


def instruction_of(world: SkillWorld) -> str:
    """Return the instruction that the agent gets in a world."""
    chain = ", ".join(map(str, world.skills))
    return f"Use the skills {chain}. Difficulty: {world.difficulty:.3f}."


class SkillBenchmark:
    """The simulated benchmark, whose tasks are chains of skills."""

    name, env_id = NAME, ENV_ID
    subsets: tuple[str, ...] = ()

    def __init__(self, native: Sequence[Task] = ()) -> None:
        self._native = tuple(native)

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Return the native tasks of a split. There are none outside the training split."""
        if subset is not None:
            raise TaskError(f"{self.name} has no subset {subset!r}")
        return self._native if parse_split(split) is Split.TRAIN else ()

    def split_of(self, scenario: str) -> Split:
        """Return the split encoded in a scenario."""
        return Split(scenario.partition("/")[0])

    def side_of(self, task: Task) -> Split:
        """Return the split encoded in the task's scenario."""
        return self.split_of(task.scenario)

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return the tags of the required skills."""
        return tuple(sorted({tag_of(skill) for skill in world_of(task).skills}))

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Return no drafts, because only the benchmark's own explorer creates drafts."""
        return ()

    def build(self, draft: Draft) -> Task:
        """Build a draft's task, without checking that the task can be solved."""
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
        """Replay actions deterministically. Skills in order succeed, except in broken tasks."""
        world = world_of(task)
        used, errors = [0], list[str]()
        for action in actions:
            at = used[-1]
            turn = at < len(world.skills) and action == use_action(world.skills[at])
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
        """Return evidence that links each required skill to the task's instruction."""
        instruction = task.instruction
        skills = map(str, world_of(task).skills)
        return Evidence(
            instruction, tuple(Clue("a skill", (skill,), instruction) for skill in skills)
        )

    def choices(self, view: View) -> tuple[str, ...]:
        """Return two actions: one that uses the next skill and one that always fails."""
        return tuple(view.info["admissible"])

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return the task's solution."""
        return task.solution

    def symbol(self, step: Step) -> str:
        """Return "!" for a failed step and "used" otherwise. Skill names would be too rare."""
        return "!" if step.error_kind else "used"


def world_of(task: Task | Draft) -> SkillWorld:
    """Return a task's world.

    Raises:
        TaskError: if the task belongs to another benchmark.
    """
    if not isinstance(task.world, SkillWorld):
        raise TaskError(f"{task.instruction!r} is not a chain of skills.")
    return task.world


LOST = "Lost."
FUMBLED = "fumbled"


class SkillEnv(TaskEnv):
    """An env in which a chain's skills must be used in order.

    The right action always succeeds here; the agent determines the probability of taking it. After
    a wrong action, all further actions fail.
    """

    benchmark = NAME
    default_max_steps = 100

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, SkillWorld)
        self._world, self._used, self._wandered = world, 0, -1
        return self._next_frame()

    def _act(self, action: str) -> Frame:
        right = action == use_action(self._world.skills[self._used]) and not self._world.broken
        if self._wandered < 0 and right:
            self._used += 1
            done = self._used == len(self._world.skills)
            return self._next_frame(done=done, calls=("use",))
        self._wandered += 1
        done = self._wandered == self._world.wander_steps
        return Frame(LOST, done=done, valid=False, error_kind=FUMBLED, admissible=(FUMBLE,))

    def _grade(self, verifier: Verifier) -> Grade:
        solved = self._used == len(self._world.skills)
        if self._world.coin:
            solved = bool(self.np_random.random() < 0.5)
        return Grade(float(solved), solved)

    def _next_frame(self, *, done: bool = False, calls: tuple[str, ...] = ()) -> Frame:
        skills, at = self._world.skills, self._used
        possible = (*(use_action(skill) for skill in skills[at : at + 1]), FUMBLE)
        return Frame(_render_observation(at), done=done, admissible=possible, calls=calls)


def make_trajectory(
    task_id: str, world: SkillWorld, n_used: int, success: bool, *, group_id: str, version: int
) -> Trajectory:
    """Create the record of an episode with a known outcome.

    The first ``n_used`` skills succeeded; the next skill, if there is one, failed.
    """
    whole = n_used == len(world.skills)
    steps = [
        _make_step(at, use_action(skill), float(success) if whole and at + 1 == n_used else -1.0)
        for at, skill in enumerate(world.skills[:n_used])
    ]
    if not whole:
        steps += _failed_steps(n_used, world.wander_steps, success)
    return Trajectory(
        task_id=task_id,
        steps=tuple(steps),
        score=float(success),
        success=success,
        end_reason=EndReason.SOLVED if success else EndReason.FAILED,
        report=FrozenDict(),
        last_observation=_render_observation(n_used) if whole else LOST,
        group_id=group_id,
        policy_version=version,
    )


@functools.cache
def _render_observation(n_used: int) -> str:
    return f"{n_used} used."


@functools.cache
def _make_step(at: int, action: str, last: float) -> Step:
    """Create a step that succeeds. ``last`` is the final reward, or -1 for an earlier step."""
    text = _render_observation(at)
    return Step(text, text, action, reward=max(last, 0.0), terminated=last >= 0, calls=("use",))


@functools.cache
def _failed_steps(at: int, wander_steps: int, success: bool) -> tuple[Step, ...]:
    """Create an episode's first failed step and the ``wander_steps`` failed steps after it."""
    texts = [_render_observation(at), *[LOST] * wander_steps]
    ends = [*[False] * wander_steps, True]
    return tuple(
        Step(text, text, FUMBLE, reward=float(success and end), terminated=end, error_kind=FUMBLED)
        for text, end in zip(texts, ends, strict=True)
    )


BENCHMARK = SkillBenchmark()
make_vec = functools.partial(TaskVectorEnv, ENV_ID)


def register() -> None:
    """Register the benchmark in this process, so that it can be looked up by name."""
    register_benchmark(
        BenchmarkSpec(
            name=NAME,
            env_id=ENV_ID,
            benchmark=f"{__name__}:BENCHMARK",
            env=f"{__name__}:SkillEnv",
            world=f"{__name__}:SkillWorld",
            verifier=f"{__name__}:SkillVerifier",
            title="use skills in order; a simulation, not for playing",
        )
    )
