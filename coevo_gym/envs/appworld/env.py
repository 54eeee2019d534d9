"""AppWorld's tasks as a Gymnasium env."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenDict, Verifier
from coevo_gym.core.task import World as TaskWorld
from coevo_gym.envs.appworld.engine.session import STEP_LIMIT_S, Brief, World
from coevo_gym.envs.appworld.judge import grade
from coevo_gym.envs.appworld.tasks import root_of_world
from coevo_gym.envs.appworld.world import AppWorldVerifier, AppWorldWorld
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.checks import is_positive_number
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv

_BLOCK = re.compile(r"```(?:python|py)[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)


class AppWorldEnv(TaskEnv):
    """Get everyday chores done by writing code against the APIs of a handful of apps.

    The engine is the real one (``appworld`` 0.1.3.post1, in a venv of its own): databases, APIs,
    clock and tests are the original's. The code that an agent writes runs in another process,
    inside a sandbox, which reaches nothing but the public APIs of the task's apps.

    Observation:
        First who is served, the task, and how to find out about the APIs. Then what the code
        printed, up to 20,000 characters; ``Execution successful.`` if it printed nothing; or
        ``Execution failed. Traceback:`` and the error.

    Action:
        Python code: the last block that begins with three backticks and ``python``, or the whole
        text if there is none. Variables live on from step to step. ``apis.<app>.<api>(…)`` calls
        an API, ``apis.api_docs`` describes them, ``apis.supervisor`` knows the person that is
        served, and ``apis.supervisor.complete_task(answer=…)`` ends the episode. As in the
        original, modules and functions beyond a list are refused before anything runs.

    Reward:
        1.0 at the end if all of the task's tests pass, else 0.0. ``reward_mode="shaped"`` gives
        the score: 0 if a test fails that passes when nothing is done, else the share of the other
        tests that pass, so that doing nothing scores 0.

    Starting state:
        The databases of a task of the split, or of the one named by ``options``, at the task's
        date and time, which stands still.

    Episode end:
        Terminated when the code has called ``complete_task``; truncated after ``max_steps`` steps
        (default 30). Every step counts, also one whose code does not run.

    Faults of the code:
        ``info["error_kind"]`` is ``syntax``, ``unsafe`` (refused before it ran), ``exception``,
        ``timeout`` (killed after ``step_limit_s``) or ``crash`` (the interpreter died or went
        beyond its memory). After the last two, variables are lost; what the apps hold is not. A
        fault of the engine is no fault of the code: it raises ``EnvBackendError``.

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        Those of every env (:class:`coevo_gym.envs.frame.Info`); ``appworld.api_calls``: calls of
        the step's code that were not refused at once; ``appworld.tests_passed`` and
        ``appworld.tests_total``, -1 until the episode is over.

    Splits and versions:
        With the official data, ``train``, ``dev`` (val), ``test_normal`` and ``test_challenge``
        (test); a scenario is what a task id begins with. Without it, or with
        ``subset="builtin"``, a small world of our own content, made with the real engine.
        v0: first version.

    Installation:
        ``coevo install appworld`` (250 MB) also makes the built-in world. ``--data`` has the engine
        download the official data, ``--from DIR`` takes it from a folder.

    Several at once:
        Their engines run in worker processes unless ``make_vec`` is told ``mode="in_process"``.
        Each worker has an engine of its own to fork worlds from, which takes seconds to start.

    Differences from the original:
        The code runs outside the engine's process, so ``requester`` can only call public APIs, and
        importing ``appworld`` fails. The clock stands still in the code, too, but not in the
        process that calls this env. Output is cut at a limit, and the addresses of objects in it
        are shown as ``0x0``: equal runs read the same, access tokens included. Only codes that
        verify an account or reset a password differ from run to run, for nobody must be able to
        work out another person's; so no task can be built that needs one. A token is accepted
        only if it was given out in this episode, and nobody logs in as one of the companies that
        send codes and receipts: all have one password, which the original's source tells. APIs
        answer while a step runs: what a thread calls after its step waits for the next. The folders
        of ``COEVO_HOME``, the data and this package, and the one that this process works in, cannot
        be read by the code.
        A call fails if an argument that is a piece of an API's address is empty, ``.`` or ``..``,
        or holds a slash, a backslash, a control character, a brace or one of ``?#%``; if an
        argument holds a lone surrogate, or a number that is not finite or beyond 64 bits; if it is
        more than the 1,000th of a step; once it has taken the engine 10 s of processor time (what
        it has done by then stays done); and once the arguments of the episode's calls take more
        than 16 MB, or its engine has grown by more than 512 MB.

    Arguments:
        See :class:`coevo_gym.envs.base.TaskEnv`; also ``step_limit_s``, seconds that a step's code
        may run. Where no sandbox can be had, ``reset`` refuses and says how to accept the risk.

    Citation:
        Trivedi et al., AppWorld: A Controllable World of Apps and People for Benchmarking
        Interactive Coding Agents, ACL 2024.
    """

    benchmark = "appworld"
    default_max_steps = 30
    max_live = 8
    begins_alone = False  # what engines share was read before they were forked
    reward_modes: ClassVar[tuple[str, ...]] = ("success", "shaped")
    vector_mode: ClassVar = "process"
    extra_info: ClassVar = FrozenDict(
        {"appworld.api_calls": 0, "appworld.tests_passed": -1, "appworld.tests_total": -1}
    )

    def __init__(self, *, step_limit_s: float = STEP_LIMIT_S, **kwargs: Any) -> None:
        if not is_positive_number(step_limit_s):
            raise ConfigError(f"step_limit_s must be positive, actual: {step_limit_s!r}")
        self.step_limit_s = step_limit_s
        self._world: World | None = None
        super().__init__(**kwargs)

    def _release(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def _begin(self, world: TaskWorld, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, AppWorldWorld)
        self._release()
        self._world = World(root_of_world(world))
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
                {"appworld.tests_passed": tests.passed, "appworld.tests_total": len(tests.tests)}
            ),
            report=FrozenDict({"tests": tuple(FrozenDict(test._asdict()) for test in tests.tests)}),
        )


def code_of(action: str) -> str:
    r"""The code that an agent's text contains.

    Example:
        >>> code_of("First I look around.\n```python\nprint(1)\n```\nThen I stop.")
        'print(1)'
        >>> code_of("print(2)")
        'print(2)'
    """
    blocks = _BLOCK.findall(action)
    return (blocks[-1] if blocks else action).strip()


def introduction(brief: Brief) -> str:
    """What an agent is told first."""
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
