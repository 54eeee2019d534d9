"""Chains of skills as a regular env.

The simulation does not step this env. It computes the outcomes of all episodes of an update at
once, and records what this env would record; a test checks that both agree.
"""

from __future__ import annotations

import functools

from numpy.random import Generator

from coevo_gym.core.task import FrozenDict, Verifier, World
from coevo_gym.core.trajectory import EndReason, Step, Trajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.testing.simulated.benchmark import ENV_ID, FUMBLE, NAME, SkillWorld, use

LOST = "Lost."
FUMBLED = "fumbled"
make_vec = functools.partial(TaskVectorEnv, ENV_ID)


class SkillEnv(TaskEnv):
    """An env in which the skills of a chain must be used in order.

    The right action always succeeds here; the probability of taking it is part of the agent. After
    a wrong action, nothing succeeds any more.
    """

    benchmark = NAME
    default_max_steps = 100

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, SkillWorld)
        self._world, self._used, self._wandered = world, 0, -1
        return self._next()

    def _act(self, action: str) -> Frame:
        right = action == use(self._world.skills[self._used]) and not self._world.broken
        if self._wandered < 0 and right:
            self._used += 1
            done = self._used == len(self._world.skills)
            return self._next(done=done, calls=("use",))
        self._wandered += 1
        done = self._wandered == self._world.wander_steps
        return Frame(LOST, done=done, valid=False, error_kind=FUMBLED, admissible=(FUMBLE,))

    def _grade(self, verifier: Verifier) -> Grade:
        solved = self._used == len(self._world.skills)
        if self._world.coin:
            solved = bool(self.np_random.random() < 0.5)
        return Grade(float(solved), solved)

    def _next(self, *, done: bool = False, calls: tuple[str, ...] = ()) -> Frame:
        skills, at = self._world.skills, self._used
        possible = (*(use(skill) for skill in skills[at : at + 1]), FUMBLE)
        return Frame(_shown(at), done=done, admissible=possible, calls=calls)


def episode(
    task_id: str, world: SkillWorld, n_used: int, success: bool, *, group_id: str, version: int
) -> Trajectory:
    """Create the record of an episode with a known outcome.

    Args:
        task_id: id of its task.
        world: world of its task.
        n_used: number of skills that succeeded; less than the chain's length if the next failed.
        success: reward.
        group_id: id of its group.
        version: version of the policy that acted.
    """
    whole = n_used == len(world.skills)
    steps = [
        _step(at, use(skill), float(success) if whole and at + 1 == n_used else -1.0)
        for at, skill in enumerate(world.skills[:n_used])
    ]
    if not whole:
        steps += _fumbles(n_used, world.wander_steps, success)
    return Trajectory(
        task_id=task_id,
        steps=tuple(steps),
        score=float(success),
        success=success,
        end_reason=EndReason.SOLVED if success else EndReason.FAILED,
        report=FrozenDict(),
        last_observation=_shown(n_used) if whole else LOST,
        group_id=group_id,
        policy_version=version,
    )


@functools.cache
def _shown(n_used: int) -> str:
    return f"{n_used} used."


@functools.cache
def _step(at: int, action: str, last: float) -> Step:
    """Create a step that succeeded; ``last`` is its reward if it ends the episode, else -1."""
    text = _shown(at)
    return Step(text, text, action, reward=max(last, 0.0), terminated=last >= 0, calls=("use",))


@functools.cache
def _fumbles(at: int, wander_steps: int, success: bool) -> tuple[Step, ...]:
    """Create the failed step and the steps after it."""
    texts = [_shown(at), *[LOST] * wander_steps]
    ends = [*[False] * wander_steps, True]
    return tuple(
        Step(text, text, FUMBLE, reward=float(success and end), terminated=end, error_kind=FUMBLED)
        for text, end in zip(texts, ends, strict=True)
    )
