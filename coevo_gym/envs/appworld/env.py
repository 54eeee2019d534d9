"""A Gymnasium env for AppWorld's tasks."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenDict, Verifier
from coevo_gym.core.task import World as TaskWorld
from coevo_gym.envs.appworld.engine.engine_session import STEP_LIMIT_S, Brief, WorldSession
from coevo_gym.envs.appworld.judge import grade
from coevo_gym.envs.appworld.tasks import ensure_root_of_world
from coevo_gym.envs.appworld.world import AppWorldVerifier, AppWorldWorld
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.checks import is_positive_number
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv

_BLOCK = re.compile(
    r"```(?P<language>[\w+.-]*)[ \t]*\r?\n(?P<code>.*?)(?:^[ \t]*```[ \t]*\r?$|\Z)",
    re.DOTALL | re.MULTILINE,
)
_PYTHON = frozenset({"python", "python3", "py"})


class AppWorldEnv(TaskEnv):
    """An env in which the agent does everyday chores by writing code against app APIs.

    The engine is the original (``appworld`` 0.1.3.post1, in a separate venv), with its databases,
    APIs, clock and tests. Code written by an agent runs in another process, inside a sandbox. This
    code can reach only the public APIs of the task's apps.

    Observation:
        The first observation describes the person that the agent acts for, the task, and how to
        look up APIs. Later observations are the code's output (up to 20,000 characters),
        ``Execution successful.`` if there is none, or ``Execution failed. Traceback:`` and the
        error.

    Action:
        Python code: the last block that begins with three backticks and ``python``, ``python3`` or
        ``py``; without one, the last block without a language; without a block, the whole text. A
        block ends at a line that contains only three backticks. Variables persist from step to
        step. ``apis.<app>.<api>(…)`` calls an API, ``apis.api_docs`` describes the APIs,
        ``apis.supervisor`` describes the person that the agent acts for, and
        ``apis.supervisor.complete_task(answer=…)`` ends the episode. As in the original, code is
        refused if it uses modules or functions that are not on an allowlist.

    Reward:
        1.0 at the end if all of the task's tests pass, else 0.0. ``reward_mode="shaped"`` gives
        partial credit: 0 if the code breaks a test that an idle agent passes, otherwise the share
        of the other tests that pass. An idle agent scores 0.

    Starting state:
        The databases of a task from the split, or of the task specified by ``options``, at the
        task's date and time. The clock is frozen.

    Episode end:
        Terminated when the code has called ``complete_task``; truncated after ``max_steps`` steps
        (default 30). Every step counts, even if its code does not run.

    Faults in the code:
        ``info["error_kind"]`` is ``syntax``, ``unsafe`` (refused before it ran), ``exception``,
        ``timeout`` (killed after ``step_limit_s``, or its check took more than 5 s of processor
        time) or ``crash`` (the interpreter died or exceeded its memory limit). If code was killed
        or crashed, variables are lost; the apps' data is not. Unlike a fault in the code, a fault
        in the engine raises ``EnvBackendError``.

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        The keys of every env (:class:`coevo_gym.envs.frame.Info`); ``appworld.api_calls``: API
        calls by the step's code that were not refused at once; ``appworld.tests_passed`` and
        ``appworld.tests_total``, -1 until the episode is over.

    Splits and versions:
        With the official data, ``train``, ``dev`` (val), ``test_normal`` and ``test_challenge``
        (test); a scenario is the first part of a task id. Without the official data, or with
        ``subset="builtin"``, the env uses a small world with our own content, created with the real
        engine. v0: first version.

    Installation:
        ``coevo install appworld`` (250 MB) also creates the built-in world. With ``--data``, the
        engine downloads the official data; ``--from DIR`` copies it from a folder.

    Vector envs:
        The engines run in worker processes unless ``make_vec`` gets ``mode="in_process"``. Each
        worker takes several seconds to start its engine, but then forks each world from it in
        milliseconds.

    Differences from the original:
        The code runs outside the engine's process, so ``requester`` can only call public APIs, and
        importing ``appworld`` fails. The clock is also frozen for the agent's code, but not in the
        process that calls this env. Long output is truncated, and object addresses are shown as
        ``0x0``. Identical runs produce identical output, including access tokens. Only codes that
        verify an account or reset a password differ from run to run, so that no agent can guess
        another user's code. Tasks that need such a code cannot be built. A token is accepted only
        if it was issued in this episode. The agent's code cannot log in as the companies that send
        codes and receipts, although the original's source reveals their shared password. APIs
        respond only while a step runs: a call from a leftover thread waits for the next step. Code
        with a syntax tree of more than 200 levels is refused. The code cannot read these folders:
        ``COEVO_HOME``, the data folder, this package's folder, and the working directory of this
        process. A call fails in these cases: an argument that is part
        of an API's address is empty, ``.`` or ``..``, or contains a slash, a backslash, a control
        character, a brace or one of ``?#%``; an argument contains a lone surrogate, or a number
        that is not finite or exceeds 64 bits; the step has made 1,000 calls already; the call has
        taken 10 s of the engine's processor time (its earlier effects remain); the arguments of the
        episode's calls exceed 16 MB, or its engine has grown by more than 512 MB.

    Arguments:
        See :class:`coevo_gym.envs.base.TaskEnv`; also ``step_limit_s``, the time limit for a step's
        code in seconds. If no sandbox is available, ``reset`` fails and explains how to accept the
        risk.

    Citation:
        Trivedi et al., AppWorld: A Controllable World of Apps and People for Benchmarking
        Interactive Coding Agents, ACL 2024.
    """

    benchmark = "appworld"
    default_max_steps = 30
    observation_tokens = 1024
    max_live = 8
    begins_alone = False  # engines share data that was read before they were forked
    reward_modes: ClassVar[tuple[str, ...]] = ("success", "shaped")
    vector_mode: ClassVar = "process"
    extra_info: ClassVar = FrozenDict(
        {"appworld.api_calls": 0, "appworld.tests_passed": -1, "appworld.tests_total": -1}
    )

    def __init__(self, *, step_limit_s: float = STEP_LIMIT_S, **kwargs: Any) -> None:
        if not is_positive_number(step_limit_s):
            raise ConfigError(f"step_limit_s must be positive, got {step_limit_s!r}")
        self.step_limit_s = step_limit_s
        self._world: WorldSession | None = None
        super().__init__(**kwargs)

    def _release(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def _begin(self, world: TaskWorld, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, AppWorldWorld)
        self._release()
        self._world = WorldSession(ensure_root_of_world(world))
        brief = self._world.begin(world.base, instruction=instruction)
        return Frame(introduction(brief))

    def _act(self, action: str) -> Frame:
        assert self._world is not None
        ran = self._world.step(code_of(action), time_limit_s=self.step_limit_s)
        return Frame(
            observation=ran.output,
            done=ran.completed,
            valid=not ran.kind,
            error_kind=str(ran.kind),
            calls=ran.calls,
            extras=FrozenDict({"appworld.api_calls": len(ran.calls)}),
        )

    def _grade(self, verifier: Verifier) -> Grade:
        assert self._world is not None
        assert isinstance(verifier, AppWorldVerifier)
        tests = grade(self._world, verifier)
        self._release()
        return Grade(
            score=tests.score,
            success=tests.success,
            parts=FrozenDict(
                {"appworld.tests_passed": tests.n_passed, "appworld.tests_total": len(tests.tests)}
            ),
            report=FrozenDict({"tests": tuple(FrozenDict(test._asdict()) for test in tests.tests)}),
        )


def code_of(action: str) -> str:
    r"""Extract the code from an agent's message.

    Example:
        >>> code_of("First I look around.\n```python\nprint(1)\n```\nThen I stop.")
        'print(1)'
        >>> code_of("print(2)")
        'print(2)'
    """
    blocks = [(block["language"].lower(), block["code"]) for block in _BLOCK.finditer(action)]
    python = [code for language, code in blocks if language in _PYTHON]
    unmarked = [code for language, code in blocks if not language]
    code = (python or unmarked or [action])[-1].strip()
    return code.removesuffix("```").strip() if blocks else code


def introduction(brief: Brief) -> str:
    """Return the agent's first observation."""
    who = brief.supervisor
    return (
        f"You act for {who['first_name']} {who['last_name']} "
        f"({who['email']}, phone {who['phone_number']}). "
        f"It is {brief.datetime}, and the clock stands still.\n\n"
        f"Task: {brief.instruction}\n\n"
        "Answer with Python code in a ```python block. It is run, you are shown what it prints, "
        "and variables live on. The apps are reached through `apis`:\n"
        "- apis.api_docs.show_app_descriptions(), .show_api_descriptions(app_name=…) and "
        ".show_api_doc(app_name=…, api_name=…) say what there is.\n"
        "- apis.supervisor has the passwords, addresses and cards of the person you act for. Most "
        "apps want a login first, and its access_token in every call.\n"
        "- apis.supervisor.complete_task() ends the task. If it asks for something, pass "
        "answer=…, no longer than need be.\n\n"
        f"Apps: {', '.join(brief.apps)}."
    )


make_vec = functools.partial(TaskVectorEnv, "CoEvolve-AppWorld-v0")
