"""The env in which rows of a user's data are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import FrozenDict, Verifier, World
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.rows.world import RowVerifier, RowWorld


class RowsEnv(TaskEnv):
    """An env with one step per episode: the agent answers a prompt, and a function judges it.

    :func:`~coevo_gym.envs.rows.from_rows` creates a subclass for each set of rows.

    Observation:
        The prompt; "" after the answer.

    Action:
        The answer: any text.

    Reward:
        In [0, 1], at the end of the episode. ``reward_mode="success"`` gives 1.0 if the function
        returns True or 1, otherwise 0.0. ``reward_mode="score"`` gives the score that it returns.

    Starting state:
        The prompt of a row. ``reset`` picks a row from the split or uses the task in ``options``.

    Episode end:
        Terminated by the first step. If the function fails, the step raises ``EnvBackendError``,
        and the episode has no grade.

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        - ``rows.system``: the system message, or "".
    """

    default_max_steps = 1
    observation_tokens = 512
    begins_alone = False
    extra_info: ClassVar[Mapping[str, Any]] = FrozenDict({"rows.system": ""})

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, RowWorld)
        self.answer = ""
        extras = {"rows.system": world.system}
        return Frame(instruction, admissible=world.choices, extras=extras)

    def _act(self, action: str) -> Frame:
        self.answer = action
        return Frame("", done=True, calls=("answer",))

    def _grade(self, verifier: Verifier) -> Grade:
        assert isinstance(verifier, RowVerifier)
        rows: Any = get_benchmark(self.benchmark)  # a RowsBenchmark
        score = rows.score_of(verifier.row, self.answer)
        return Grade(score, score >= 1.0)
