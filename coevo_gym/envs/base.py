"""The base class for all benchmark envs.

A benchmark implements ``_begin`` and ``_act``, which run its engine, and ``_grade``, which judges
the finished episode. Everything that Gymnasium, a curriculum or a trainer relies on is implemented
here. Every task is checked before an episode begins: it must belong to the env's benchmark,
and a task that claims to be a training task must not be a copy of a validation or test task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark, benchmark_specs, check_split_claim, find_task
from coevo_gym.core.errors import (
    ConfigError,
    EnvBackendError,
    ResetNeeded,
    TaskError,
    WorkersFailed,
)
from coevo_gym.core.registry import load_object
from coevo_gym.core.spaces import UnicodeText, clean_text
from coevo_gym.core.task import (
    OPEN,
    FrozenDict,
    Split,
    Task,
    Verifier,
    World,
    freeze,
    parse_split,
)
from coevo_gym.core.task_file import read_tasks
from coevo_gym.core.trajectory import EndReason, EpisodeRecord, PastStep, Step, View
from coevo_gym.envs.checks import check_action, is_positive_int, require_names
from coevo_gym.envs.frame import PRIVATE_INFO, Frame, Grade, Info
from coevo_gym.envs.held_out import HoldingOut, benchmark_of, native_tasks

OBSERVATION_CAP = 100_000
ACTION_CAP = 20_000
OBSERVATION_SPACE = UnicodeText(OBSERVATION_CAP)
ACTION_SPACE = UnicodeText(ACTION_CAP)
VectorMode = Literal["in_process", "process"]


class TaskEnv(gym.Env[str, str]):
    """Base class for benchmark envs. Actions and observations are text.

    Subclasses set the class variables and implement the three hooks.

    Args:
        split: the split that ``reset`` picks native tasks from: ``"train"``, ``"val"``, ``"test"``
            or ``"held_out"``.
        subset: the benchmark's name for a part of the split; None for the whole split.
        tasks: names or ids of the tasks to pick from, or the path to a JSONL file of tasks.
        hold_out: share of the training scenarios to set aside, in [0, 1). Their tasks form the
            split ``held_out`` and are no longer training tasks.
        max_steps: maximum number of steps per episode; None for the benchmark's default.
        reward_mode: ``"success"`` for a final reward of 1.0 or 0.0; see the env's class for others.
        render_mode: None or one of ``metadata["render_modes"]``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's convention)
    benchmark: ClassVar[str]
    default_max_steps: ClassVar[int] = 15
    reward_modes: ClassVar[tuple[str, ...]] = ("success", "score")
    observation_tokens: ClassVar[int] = 768
    """Number of tokens that suffice for the first 2,000 characters of nearly all observations."""
    max_live: ClassVar[int] = 128
    """Maximum envs of this kind that a process should keep open at the same time."""
    begins_alone: ClassVar[bool] = True
    """True if episodes in different threads must begin one at a time.

    Engines in the same process share the data that the first episode loads.
    """
    extra_info: ClassVar[Mapping[str, Any]] = FrozenDict()
    """The benchmark's own info keys and their default values."""
    private_info: ClassVar[frozenset[str]] = PRIVATE_INFO
    """Info keys that are left out of every view, because a policy must not learn from them."""
    vector_mode: ClassVar[VectorMode] = "in_process"
    """The default ``mode`` of a ``TaskVectorEnv`` that has more than one env."""
    engine_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that the engine imports when it starts; worker processes share them."""
    engine_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes set by hooks and read elsewhere; workers send them back after each hook."""
    task_arguments: ClassVar[frozenset[str]] = frozenset({"split", "subset", "tasks", "hold_out"})
    """Arguments that only decide which tasks the env has, not how they are played."""

    observation_space = OBSERVATION_SPACE
    action_space = ACTION_SPACE

    def __init__(
        self,
        *,
        split: str = "train",
        subset: str | None = None,
        tasks: Sequence[str] | str | None = None,
        hold_out: float = 0.0,
        max_steps: int | None = None,
        reward_mode: str = "success",
        render_mode: str | None = None,
    ) -> None:
        self.max_steps, self._limited = self.default_max_steps, False
        if max_steps is not None:
            self.limit_steps(max_steps)
        if reward_mode not in self.reward_modes:
            raise ConfigError(
                f"Unknown reward_mode {reward_mode!r}. Choose one of: "
                f"{', '.join(self.reward_modes)}."
            )
        if render_mode is not None and render_mode not in (modes := self.metadata["render_modes"]):
            raise ConfigError(
                f"Unknown render_mode {render_mode!r}. Choose one of: {', '.join(modes)}."
            )
        self.reward_mode = reward_mode
        self.render_mode = render_mode
        self.split, self.hold_out = parse_split(split), hold_out
        _ = self.benchmark_with_hold_out  # raises if the share is out of range
        self._tasks = self._select_tasks(subset, tasks)
        self._task: Task | None = None
        self._begun = False
        self._frame = Frame("")
        self._history: list[PastStep] = []  # without the agent's answers and tokens
        self._steps: list[Step] = []
        self._outcome: Grade | None = None
        self._end_reason: EndReason | None = None
        self._closed = False

    # Hooks that a benchmark implements.

    @abstractmethod
    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        """Start the engine for a task. ``self.task`` is set later, to hide the ground truth."""

    @abstractmethod
    def _act(self, action: str) -> Frame:
        """Execute an action and return the resulting frame. Invalid actions must not raise."""

    def _review(self, verifier: Verifier, frame: Frame) -> Frame:
        """Let the judge inspect each frame that ``_begin`` or ``_act`` returns.

        Override this hook if a benchmark's pages or limits depend on a judgement before the end.
        The engine never receives the verifier. The agent sees the frame that this hook returns.
        The verifier of an open task is :class:`~coevo_gym.core.task.NothingAsked`.
        """
        return frame

    @abstractmethod
    def _grade(self, verifier: Verifier) -> Grade:
        """Grade the finished episode. This is called once, and never for a task without a goal."""

    def _draw(self) -> str:
        """Render the engine's state. This hook is not used in ``ansi`` mode."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release the engine. Repeated calls have no effect."""

    # Public methods.

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks that ``reset`` picks from, unless its options specify a task."""
        return self._tasks

    @property
    def benchmark_with_hold_out(self) -> Benchmark:
        """The env's benchmark, with training scenarios held out according to ``hold_out``."""
        return benchmark_of(self.benchmark, self.hold_out)

    @property
    def task(self) -> Task:
        """The task of the current episode."""
        if self._task is None:
            raise ResetNeeded("No episode has begun. Call reset() first.")
        return self._task

    @property
    def instruction(self) -> str:
        """The current request to the agent. In a dialogue, it is the latest user message."""
        return self.task.instruction

    @property
    def view(self) -> View:
        """The agent's current view of the episode."""
        history = tuple(self._history)
        return View(self.instruction, self._frame.observation, self._public_info(), history)

    @property
    def info(self) -> dict[str, Any]:
        """The ``info`` dict for the current state of the episode."""
        return self._build_info()

    @property
    def calls(self) -> tuple[str, ...]:
        """The names of the engine operations that the last step ran."""
        return self._frame.calls

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seed of ``np_random``, which picks the task unless ``options`` specifies one.
            options: ``{"task": Task}`` or ``{"task_id": id or name}``; None to pick a task at
                random.

        Returns:
            The first observation and info (see :class:`Info`).

        Raises:
            ConfigError: if ``options`` has other keys.
            TaskError: if the task is unknown, malformed or belongs to another benchmark.
            SplitLeakError: if the task claims to be a training task, but is a copy of a validation
                or test task.
            EnvBackendError: if the engine fails. After any error, no episode is running:
                the previous episode is over, too.
        """
        super().reset(seed=seed)
        self._closed = False
        self._task = None
        task = self._choose_task(options or {})
        self._check_task(task)
        self._history, self._steps, self._outcome, self._end_reason = [], [], None, None
        self._begun = True
        try:
            frame = self._begin(task.world, task.instruction, self.np_random)
            self._frame = self._clean_frame(self._review(task.verifier, frame))
        except TaskError as error:
            raise TaskError(f"{task.name} cannot be run: {error}") from error
        self._task = task
        return self._frame.observation, self._build_info()

    def limit_steps(self, limit: int) -> None:
        """End every episode after at most ``limit`` steps and grade it.

        The first limit replaces the benchmark's default; after several calls, the lowest limit
        applies. A ``TimeLimit`` that ``gym.make`` or the user puts around the env calls this method
        automatically.

        Raises:
            ConfigError: if ``limit`` is not a positive int.
        """
        if not is_positive_int(limit):
            raise ConfigError(f"max_steps must be a positive int, got {limit!r}")
        self.max_steps = min(self.max_steps, int(limit)) if self._limited else int(limit)
        self._limited = True

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one action.

        Args:
            action: text; overlong or malformed text does not raise an error.

        Raises:
            ResetNeeded: if no episode is running, or the env has been closed.
            TypeError: if ``action`` is not a string.
            EnvBackendError: if the engine fails. The episode is then over and has no grade.
        """
        self._check_running("step")
        check_action(action)
        before, info = self._frame.observation, self._public_info()
        action = clean_text(action, ACTION_CAP)
        with self._mark_lost_on_fault():
            frame = self._act(action)
            self._frame = self._clean_frame(self._review(self.task.verifier, frame))
            terminated = self._frame.done
            spent = self._frame.cut or len(self._steps) + 1 >= self.max_steps
            truncated = not terminated and spent
            reward = self._finish_episode(terminated) if terminated or truncated else 0.0
        self._history.append(PastStep(before, action, info=info))
        done = Step(
            observation=before,
            shown=before,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            calls=self._frame.calls,
            error_kind=self._frame.error_kind,
            extras=self._frame.extras,
        )
        self._steps.append(done)
        return self._frame.observation, reward, terminated, truncated, self._build_info()

    def cut(self, reason: EndReason) -> None:
        """End and grade an episode whose agent cannot continue.

        Raises:
            ResetNeeded: if no episode is running, or the env has been closed.
            EnvBackendError: if the engine fails. The episode is then over and has no grade.
        """
        self._check_running("cut")
        with self._mark_lost_on_fault():
            self._finish_episode(terminated=False)
        self._end_reason = reason

    def end_from_outside(self, info: dict[str, Any]) -> dict[str, Any]:
        """Grade an episode that a wrapper has ended, and set its end reason to ``time_limit``.

        Returns the info of the last step with the outcome added. An episode that has already ended
        in the env itself is left unchanged.

        Raises:
            EnvBackendError: if the engine fails. The episode is then over and has no grade.
        """
        if self._end_reason is not None:
            return info
        self.cut(EndReason.TIME_LIMIT)
        outcome = {
            key: value for key, value in self._build_info().items() if key in self.private_info
        }
        return {**info, **outcome}

    def episode_record(self) -> EpisodeRecord:
        """Return the record of the finished episode.

        :func:`coevo_gym.episodes.trajectory_of` turns the record into a trajectory.

        Raises:
            ResetNeeded: if the episode is not over, or was lost to an engine failure.
        """
        grade, reason = self._outcome, self._end_reason
        if grade is None or reason is None:
            why = "was lost to an engine failure" if reason else "is not over yet"
            raise ResetNeeded(f"The episode {why}, so it has no record. Finish an episode first.")
        return EpisodeRecord(
            task_id=self.task.id,
            steps=tuple(self._steps),
            score=float(grade.score),
            success=grade.success,
            end_reason=reason,
            report=freeze(grade.report),
            last_observation=self._frame.observation,
        )

    def require_evaluable(self) -> None:
        """Raise an error if the current task has no goal, because such a task cannot be evaluated.

        Raises:
            TaskError: if the task is an open task.
        """
        self.task.require_goal("evaluate")

    def close(self) -> None:
        """Release the engine. Repeated calls have no effect.

        A running episode ends without a grade. A finished episode's results remain available.
        """
        self._closed = True
        self._release()

    def render(self) -> str | None:
        """Render the current state as text (``ansi``) or with the engine's own renderer.

        Returns:
            The rendered state; None without a render mode.
        """
        if self.render_mode is None:
            return None
        if self.render_mode != "ansi" and self.task:
            return self._draw()
        lines = [f"task    {self.task.name}", f"wanted  {self.instruction}"]
        if self._steps:
            lines.append(f"action  {self._steps[-1].action}")
        if self._end_reason and self._outcome:
            lines.append(f"end     {self._end_reason}, score {self._outcome.score:.2f}")
        lines.append(f"step {len(self._steps)} of {self.max_steps}")
        return "\n".join(lines) + f"\n\n{self._frame.observation}\n"

    def __getstate__(self) -> dict[str, Any]:
        """Return the env's state for copying or pickling. This works only before the first reset.

        Raises:
            TypeError: if the env has been reset.
        """
        if self._begun:
            raise TypeError(
                f"This {type(self).__name__} has begun an episode, so it cannot be copied or "
                "pickled: its engine's state would be lost. Copy an env before its first reset(), "
                "or create a new env with gym.make(env.spec)."
            )
        return self.__dict__

    @classmethod
    def worker_class_and_state(cls) -> tuple[type[TaskEnv], Mapping[str, Any]]:
        """Return the class of this env's copies in workers, and attributes unique to the copies.

        Workers must be able to import the class.
        """
        return cls, FrozenDict()

    # Task selection. Benchmarks whose tasks need other rules override these methods.

    def _select_tasks(
        self, subset: str | None, tasks: Sequence[str] | str | None
    ) -> Sequence[Task]:
        """Return the tasks that ``reset`` picks from."""
        if tasks is None:
            return self._list_native_tasks(subset)
        if isinstance(tasks, str):
            chosen: Sequence[Task] = read_tasks(Path(tasks))
        else:
            chosen = tuple(map(self._find_task, require_names(tasks)))
        for task in chosen:
            self._check_task(task.require_goal("list"))
            if task.split is not self.split:
                raise TaskError(
                    f"{task.name} is a {task.split} task, but this env was created with "
                    f"split={str(self.split)!r}. Pass split={str(task.split)!r}."
                )
        if not chosen:
            raise TaskError(f"tasks={tasks!r} contains no tasks. Name at least one task.")
        return chosen

    def _list_native_tasks(self, subset: str | None) -> Sequence[Task]:
        """Return the native tasks of the env's split."""
        return native_tasks(self.benchmark, self.split, subset, hold_out=self.hold_out)

    def _find_task(self, name_or_id: str) -> Task:
        """Return the native task with this name or id."""
        task, practised = find_task(self.benchmark, name_or_id), self.benchmark_with_hold_out
        return practised.relabel(task) if isinstance(practised, HoldingOut) else task

    def _check_task(self, task: Task) -> None:
        """Raise an error if this env must not run the given task."""
        if task.benchmark != self.benchmark:
            raise TaskError(
                f"{task.name} belongs to {task.benchmark}, but this env runs {self.benchmark}. "
                f"Create an env for {task.benchmark} instead."
            )
        if task.split is Split.TRAIN:  # only a claim to be a training task needs a check
            try:
                side = self._side_of(task)
            except TaskError as error:
                raise TaskError(f"{task.name} cannot be run: {error}") from error
            check_split_claim(task, side, "play")

    def _side_of(self, task: Task) -> Split:
        """Return the split that a task's content belongs to, even if the task claims another."""
        return self.benchmark_with_hold_out.side_of(task)

    def _choose_task(self, options: Mapping[str, Any]) -> Task:
        """Return the task specified in the reset options, or a random task if there is none."""
        unknown = set(options) - {"task", "task_id"}
        if unknown or len(options) > 1:
            raise ConfigError(
                'reset takes options={"task": Task} or {"task_id": id or name}, '
                f"got keys: {sorted(options)}"
            )
        if "task" in options:
            task = options["task"]
            if not isinstance(task, Task):
                raise TaskError(
                    f'options["task"] must be a Task, got {type(task).__name__}. '
                    'Pass a name or id as options={"task_id": …}.'
                )
            return task
        if "task_id" in options:
            wanted = options["task_id"]
            own = next((t for t in self._tasks if wanted in (t.id, t.name)), None)
            return own or self._find_task(wanted)
        return self._tasks[int(self.np_random.integers(len(self._tasks)))]

    # Internals.

    def _check_running(self, what: str) -> None:
        """Raise ``ResetNeeded`` unless an episode is running."""
        if self._closed:
            raise ResetNeeded(
                f"Cannot call {what}(): the env is closed. Call reset() first, or create a new env."
            )
        _ = self.task  # raises before the first reset
        if self._end_reason is not None:
            raise ResetNeeded(f"Cannot call {what}(): the episode is over. Call reset() first.")

    def _finish_episode(self, terminated: bool) -> float:
        """Grade the episode, set its end reason, and return the final reward."""
        if self.task.origin == OPEN:
            self._release()
            grade = Grade(0.0, False)
        else:
            grade = self._grade(self.task.verifier)
        self._outcome = grade
        if not terminated:
            self._end_reason = EndReason.MAX_STEPS
        else:
            self._end_reason = EndReason.SOLVED if grade.success else EndReason.FAILED
        if self.reward_mode == "success":
            return 1.0 if grade.success else 0.0
        return float(grade.score)

    @contextmanager
    def _mark_lost_on_fault(self) -> Iterator[None]:
        """Mark the episode as lost if the engine fails inside the ``with`` block."""
        try:
            yield
        except (EnvBackendError, WorkersFailed):
            self._end_reason = EndReason.WORKER_LOST
            raise

    def _clean_frame(self, frame: Frame) -> Frame:
        text = clean_text(frame.observation, OBSERVATION_CAP)
        extras = {
            key: clean_text(value, max(len(value), OBSERVATION_CAP))  # never truncated: may be JSON
            for key, value in frame.extras.items()
            if isinstance(value, str) and not value.isascii()
        }
        if text is not frame.observation:
            frame = replace(frame, observation=text)
        return replace(frame, extras=FrozenDict({**frame.extras, **extras})) if extras else frame

    def _build_info(self) -> dict[str, Any]:
        grade, frame = self._outcome, self._frame
        info: Info = {
            "task_id": self.task.id,
            "step": len(self._steps),
            "success": grade.success if grade else False,
            "score": float(grade.score) if grade else -1.0,
            "end_reason": str(self._end_reason or ""),
            "action_valid": frame.valid,
            "error_kind": frame.error_kind,
            "admissible": frame.admissible,
        }
        return {**info, **self.extra_info, **frame.extras, **(grade.parts if grade else {})}

    def _public_info(self) -> FrozenDict:
        return FrozenDict(
            {k: v for k, v in self._build_info().items() if k not in self.private_info}
        )


_ONE_TO_ONE = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Wrappers added by ``gym.make`` that do not change the number of steps."""


def _pass_on_limit(make: Callable[[Any, gym.Env[Any, Any], int], None]) -> Any:
    """Extend ``TimeLimit.__init__`` to pass its limit to a :class:`TaskEnv`.

    This grades the last step of ``gym.make(id, max_episode_steps=n)``, whose ``TimeLimit`` ends an
    episode without telling the env: the reward would be 0 even if the task is solved, and info
    would have no score. Gymnasium offers no other place: ``gym.make`` passes the limit nowhere
    else, and ``gym.make_vec`` rejects ``additional_wrappers`` beside a vector entry point.
    """

    @wraps(make)
    def init_and_limit(self: Any, env: gym.Env[Any, Any], max_episode_steps: int) -> None:
        make(self, env, max_episode_steps)
        while type(env) in _ONE_TO_ONE:
            env = env.env  # type: ignore[attr-defined]
        if isinstance(env, TaskEnv):
            env.limit_steps(max_episode_steps)

    return init_and_limit


TimeLimit.__init__ = _pass_on_limit(TimeLimit.__init__)  # type: ignore[method-assign]


def env_class_of(benchmark: str) -> type[TaskEnv]:
    """Return a benchmark's env class."""
    spec = next(spec for spec in benchmark_specs() if spec.name == benchmark)
    return cast(type[TaskEnv], load_object(spec.env))
