"""Newbench as a Gymnasium env."""

from __future__ import annotations

import functools

from numpy.random import Generator

from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv

from .engine import Answer, Room
from .world import NewbenchVerifier, NewbenchWorld


class NewbenchEnv(TaskEnv):
    """Put a thing into a box.

    Observation:
        The instruction, then the result of the last action.

    Action:
        ``open BOX``, ``take THING``, ``put BOX`` (the held thing, into that box) or ``done``.

    Reward:
        1.0 at the end if the thing is in the box, else 0.0; ``reward_mode="score"`` gives 0.5
        if everything is right except that ``done`` is missing.

    Starting state:
        A room from the split, or the room of the task in ``options``; all boxes are closed.

    Episode end:
        Terminated by ``done``; truncated after ``max_steps`` actions (default 12).

    Splits and versions:
        By room. Version 0.
    """

    benchmark = "newbench"
    default_max_steps = 12

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, NewbenchWorld)
        self._room, self._wanted = Room(world), instruction
        return self._frame_of(Answer(f"There are boxes: {', '.join(world.boxes)}; all are closed."))

    def _act(self, action: str) -> Frame:
        return self._frame_of(self._room.act(action))

    def _grade(self, verifier: Verifier) -> Grade:
        assert isinstance(verifier, NewbenchVerifier)
        return grade(self._room, verifier)

    def _frame_of(self, answer: Answer) -> Frame:
        return Frame(
            f"{self._wanted}\n{answer.text}",
            done=self._room.over,
            valid=not answer.error,
            error_kind=answer.error,
            admissible=self._room.possible_actions(),
            calls=(answer.call,) if answer.call else (),
        )


def grade(room: Room, verifier: NewbenchVerifier) -> Grade:
    """Grade a room's final state."""
    right = room.is_in(verifier.thing, verifier.box)
    return Grade(1.0 if right and room.over else 0.5 if right else 0.0, right and room.over)


make_vec = functools.partial(TaskVectorEnv, "Newbench-v0")
