"""An AppWorld world: the stock engine in one process, model-written code in another.

The engine is trusted and has the databases, the clock and the ground truth. The executor is not
trusted and can reach only the public APIs of the task's apps, over a socket to the engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import coevo_gym
from coevo_gym.core.errors import EnvBackendError, ResetNeeded
from coevo_gym.core.spaces import clean_text
from coevo_gym.envs.appworld.engine.engine_pool import Engine, Pool, get_pool
from coevo_gym.envs.appworld.engine.executor import Executor
from coevo_gym.envs.appworld.engine.prefix import code_packages_folder, engine_python
from coevo_gym.envs.appworld.inside.channel import ChannelError
from coevo_gym.provision import coevo_home
from coevo_gym.sandbox import Level

SEED = 100
MAX_CALLS = 1000
STEP_LIMIT_S = 60.0
"""Time limit for a step's code, in seconds."""
MAX_CHARS = 20_000
"""Maximum number of output characters shown per step."""

_FAILED = "Execution failed. Traceback:\n"
_REPLACED = "All variables are lost; the apps are as they were left."


class ErrorKind(StrEnum):
    """The kind of error that made a step fail."""

    NONE = ""
    SYNTAX = "syntax"
    UNSAFE = "unsafe"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"


class Brief(NamedTuple):
    """The information that an agent gets at the start of an episode.

    Attributes:
        instruction: description of the task.
        supervisor: the user who gives the task: first_name, last_name, email, phone_number.
        datetime: the constant time in the world, in ISO format.
        apps: the APIs of each app, by name.
    """

    instruction: str
    supervisor: Mapping[str, str]
    datetime: str
    apps: Mapping[str, tuple[str, ...]]


class Ran(NamedTuple):
    """The result of running one step's code.

    Attributes:
        output: printed output, or the error.
        kind: kind of error.
        calls: the APIs that were called, as ``app.api``.
        completed: True if the task was declared complete, now or earlier.
    """

    output: str
    kind: ErrorKind
    calls: tuple[str, ...]
    completed: bool


class TaskTest(NamedTuple):
    """One of a task's own tests.

    Attributes:
        requirement: description of what the test checks.
        label: ``no_op_fail`` if doing nothing fails the test, ``no_op_pass`` if it passes.
        passed: True if the test passes.
    """

    requirement: str
    label: str
    passed: bool


class Diff(NamedTuple):
    """Changes made to a world since the start of the episode.

    Attributes:
        changes: rows ``added``, ``updated`` and ``removed``, by model. Two runs that make the same
            changes in a different order have equal values.
        answer: the submitted answer, a JSON value, or None if there is no answer.
        status: status that the agent declared for the task, or "".
    """

    changes: dict[str, Any]
    answer: Any
    status: str


class WorldSession:
    """An AppWorld world that is reopened for each episode.

    Model-written code never causes an exception here: anything it does to its process is reported
    in a :class:`Ran`.

    Args:
        root: folder that contains the engine's ``data``.
        level: isolation level for model-written code; None for the strongest one available.
    """

    def __init__(self, root: Path, level: Level | None = None) -> None:
        self._root = root
        self._level = level
        self._owner = os.getpid()
        self._pool: Pool | None = None
        self._engine: Engine | None = None
        self._executor: Executor | None = None
        self._brief: Brief | None = None
        self._completed = False

    def begin(self, task_id: str, instruction: str | None = None) -> Brief:
        """Open the world of a native task. The previous world is closed.

        Args:
            task_id: id of the task, such as ``82e2fac_1``.
            instruction: instruction that replaces the task's own.

        Raises:
            BenchmarkNotInstalled: if the engine is not installed.
            EnvBackendError: if the engine or the sandbox does not start; try again.
        """
        self._kill_executor()
        engine = self._ensure_engine()
        engine.episodes += 1
        engine.send(
            "begin", task_id=task_id, instruction=instruction, seed=SEED, max_calls=MAX_CALLS
        )
        self._executor = self._launch_executor()  # while the engine opens the world
        answer = engine.receive()
        self._completed = False
        apps = {app: tuple(apis) for app, apis in answer["apps"].items()}
        self._brief = Brief(answer["instruction"], answer["supervisor"], answer["datetime"], apps)
        self._connect_executor()
        return self._brief

    def step(
        self, code: str, *, time_limit_s: float = STEP_LIMIT_S, max_chars: int = MAX_CHARS
    ) -> Ran:
        """Run one step's code in the current world.

        Args:
            code: Python code; its variables persist across steps.
            time_limit_s: wall-clock limit in seconds, after which the process is killed and
                replaced.
            max_chars: maximum output length; longer output is truncated and ends with a note.

        Raises:
            ResetNeeded: if no world is open.
            EnvBackendError: if the engine fails.
        """
        engine, executor = self._require_open()
        checked = engine.ask("check", code=code)
        if checked["kind"]:
            return Ran(
                _replace_surrogates(checked["message"]),
                ErrorKind(checked["kind"]),
                (),
                self._completed,
            )
        engine.ask("step_begin")
        try:
            output, failed = executor.run(code, time_limit_s, max_chars)
            kind = ErrorKind.EXCEPTION if failed else ErrorKind.NONE
        except TimeoutError:
            kind = ErrorKind.TIMEOUT
            output = f"{_FAILED}Execution timed out after {time_limit_s:g} seconds. {_REPLACED}"
        except ChannelError:
            kind = ErrorKind.CRASH
            output = f"{_FAILED}The Python process has died. {_REPLACED}"
        if kind in (ErrorKind.TIMEOUT, ErrorKind.CRASH):
            self._kill_executor()
        ended = engine.ask("step_end")
        if not ended["attached"] or self._executor is None:
            if self._executor is not None:
                output = f"{output.rstrip()}\n[cut off from the apps: {_REPLACED}]"
            self._kill_executor()
            self._executor = self._launch_executor()
            self._connect_executor()
        self._completed = ended["completed"]
        return Ran(_replace_surrogates(output), kind, tuple(ended["calls"]), self._completed)

    def grade(self) -> tuple[TaskTest, ...]:
        """Run the task's own tests on the current state.

        All tests pass if and only if the engine's own verdict is success.

        Raises:
            ResetNeeded: if no world is open.
            EnvBackendError: if the engine fails, or its verdict contradicts its tests.
        """
        engine, _ = self._require_open()
        answer = engine.ask("grade")
        tests = tuple(
            TaskTest(row["requirement"], row["label"], row["passed"]) for row in answer["tests"]
        )
        success, passed = answer["success"], sum(test.passed for test in tests)
        if success is not (bool(tests) and passed == len(tests)):
            engine.broken = True
            raise EnvBackendError(
                f"The AppWorld engine contradicts itself: success is {success}, but {passed} of "
                f"{len(tests)} tests pass. Check the task's tests."
            )
        return tests

    def diff(self) -> Diff:
        """Return the changes made in the episode. Raises the same errors as :meth:`grade`."""
        answer = self._require_open()[0].ask("diff")
        return Diff(answer["diff"], answer["answer"], answer["status"] or "")

    def close(self) -> None:
        """Release the world's processes. Repeated calls have no effect; ``begin`` reopens it."""
        if os.getpid() != self._owner:
            return  # a fork does not own the processes
        self._kill_executor()
        self._give_back_engine()

    def _require_open(self) -> tuple[Engine, Executor]:
        if self._engine is None or self._executor is None:
            raise ResetNeeded("No AppWorld world is open. Call begin() first.")
        if self._engine.broken:  # a late reply would be taken for the reply to the next command
            raise ResetNeeded("The AppWorld engine failed. Call begin() to open a new world.")
        return self._engine, self._executor

    def _ensure_engine(self) -> Engine:
        if self._engine is not None and not self._engine.is_usable:
            self._give_back_engine()
        if self._engine is None:
            self._pool = get_pool(self._root)
            self._engine = self._pool.take_engine()
        return self._engine

    def _give_back_engine(self) -> None:
        if self._engine is not None and self._pool is not None:
            engine, self._engine = self._engine, None
            self._pool.give_back(engine)

    def _launch_executor(self) -> Executor:
        data = (self._root, self._root / "data")
        private = (*data, coevo_home(), Path(coevo_gym.__file__).parent, Path.cwd())
        return Executor(engine_python().resolve(), code_packages_folder(), private, self._level)

    def _connect_executor(self) -> None:
        engine, executor = self._require_open()
        assert self._brief is not None
        try:
            engine.ask("attach", [executor.apps.fileno()])
            executor.apps.close()
            executor.prepare(self._brief.datetime, SEED, self._brief.apps)
        except EnvBackendError:
            self._kill_executor()
            raise

    def _kill_executor(self) -> None:
        if self._executor is not None:
            self._executor.kill()
            self._executor = None


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates in a string."""
    return clean_text(text, max(64, len(text)))
