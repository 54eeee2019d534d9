"""The env in which an agent answers a user's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark, find_spec, get_benchmark
from coevo_gym.core.registry import load_object
from coevo_gym.core.task import FrozenDict, Verifier, World
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.rows.conversations import RowEpisode, RowRules
from coevo_gym.envs.rows.world import RowVerifier, RowWorld


class RowsEnv(TaskEnv):
    """An env in which the agent answers prompts, and a function judges the answers.

    :func:`~coevo_gym.envs.rows.from_rows` creates a subclass for each set of rows.

    Observation:
        The prompt, then the messages of ``respond``, or the observations of the user's env; "" at
        the end.

    Action:
        The answer: any text. With tools, an answer may consist of calls in Hermes notation
        (``<tool_call>{"name": …, "arguments": {…}}</tool_call>``). Their results, or errors, are
        the next observation, each between ``<tool_response>`` tags. An answer without a call is
        judged.

    Reward:
        In [0, 1], at the end of the episode. ``reward_mode="success"`` gives 1.0 if the function
        returns True or 1, otherwise 0.0. ``reward_mode="score"`` gives the score that it returns.
        Without a function, the rewards of the user's env are summed.

    Starting state:
        The prompt of a row. ``reset`` picks a row from the split or uses the task in ``options``.

    Episode end:
        Terminated by the answer, by ``respond`` or by the user's env; truncated after ``max_turns``
        answers. If a function fails, the step raises ``EnvBackendError``, and the episode has no
        grade.

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        - ``rows.system``: the system message, or "".
        - ``rows.tools``: the tools, as the JSON text of a chat request's ``tools``.

        ``error_kind`` is ``parse`` (a call cannot be read), ``unknown_tool``, ``arguments`` or
        ``call`` (the tool raised an exception).
    """

    default_max_steps = 1
    observation_tokens = 512
    begins_alone = False
    engine_attributes = ("_request",)
    rules: RowRules
    extra_info: ClassVar[Mapping[str, Any]] = FrozenDict({"rows.system": "", "rows.tools": "[]"})

    _talk: RowEpisode | None = None
    _request = ""

    @property
    def instruction(self) -> str:
        """The prompt, or the first observation of the user's own env.

        The instruction of a row without a prompt contains fields that the agent must not see.
        """
        _ = self.task  # raises before the first reset and after a failed one
        return self._request

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, RowWorld)
        self._release()
        self.answer, self.choices = "", world.choices
        self._talk = self.rules.create_episode(world.row or {}, instruction)
        self._request = self._talk.begin()
        extras = {"rows.system": world.system, **self._tools_info()}
        return Frame(self._request, admissible=world.choices, extras=extras)

    def _act(self, action: str) -> Frame:
        assert self._talk is not None
        self.answer = action
        observation, done = self._talk.step(action)
        kind = self._talk.error_kind
        return Frame(
            observation,
            done=done,
            admissible=() if done else self.choices,
            valid=not kind,
            error_kind=kind,
            calls=self._talk.calls,
            extras=self._tools_info(),
        )

    def _grade(self, verifier: Verifier) -> Grade:
        assert isinstance(verifier, RowVerifier)
        assert self._talk is not None
        score = self.rules.judge(self._talk, verifier.row, self.answer)
        self._release()
        return Grade(score, score >= 1.0)

    def _tools_info(self) -> dict[str, str]:
        tools = self.rules.tools
        return {} if tools is None else {"rows.tools": tools.schemas}

    def _release(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.close()

    @classmethod
    def worker_class_and_state(cls) -> tuple[type[TaskEnv], Mapping[str, Any]]:
        """Return this class and its state in workers: the user's functions, but not the rows."""
        return RowsEnv, {"rules": cls.rules}

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_env, (get_benchmark(self.benchmark),), self.__getstate__()


def _new_env(benchmark: Benchmark) -> RowsEnv:
    spec = find_spec(benchmark.name)
    assert spec is not None
    kind: type[RowsEnv] = load_object(spec.env)
    return kind.__new__(kind)
