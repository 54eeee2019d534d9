"""Envs whose engine and judge run in a worker process.

Everything but a benchmark's hooks stays where it was: tasks, checks, budget, reward, info, views
and records are made here, by the same code as in one process. That is why they are equal. What a
worker loses is an engine, and never a record.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, ClassVar, cast

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.workers.serving import Answer, Order, Refused, blueprint
from coevo_gym.envs.workers.worker import Worker

_OWN = ("_worker", "_seat", "_lives_in", "_made", "_past")


class RemoteEnv(TaskEnv):
    """The hooks of an env, done by a worker; see :func:`put_to_work`.

    When a worker is lost, the episode whose step or reset meets the loss is lost. The others that
    had their engines there never notice: before its next hook, an episode is played again in the
    new worker, and has to show there what it has shown before, frame by frame.
    """

    begins_alone = False  # each worker sees to that itself
    _kind: ClassVar[type[TaskEnv]]
    _worker: Worker
    _seat: int
    _lives_in: int | None
    _made: bytes
    _past: list[tuple[str, tuple[Any, ...], Any]]

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        hidden = {*_OWN, *self.engine_attributes}
        made = blueprint(self._kind, {k: v for k, v in vars(self).items() if k not in hidden})
        if made != self._made:
            self._made, self._lives_in = made, None
        self._past = []
        return cast(Frame, self._do("begin", world, instruction, copy.deepcopy(rng)))

    def _act(self, action: str) -> Frame:
        return cast(Frame, self._do("act", action))

    def _review(self, verifier: Verifier, frame: Frame) -> Frame:
        if self._kind._review is TaskEnv._review:
            return frame
        return cast(Frame, self._do("review", verifier))

    def _grade(self, verifier: Verifier) -> Grade:
        return cast(Grade, self._do("grade", verifier))

    def _draw(self) -> str:
        return cast(str, self._do("draw"))

    def _release(self) -> None:
        with self._worker.lock:
            lives, self._lives_in = self._lives_in, None
            if lives is not None and lives == self._worker.running:
                with suppress(EnvBackendError):  # then nothing is left to release
                    self._worker.ask(Order(self._seat, "release"), self._what("release"))

    def _do(self, hook: str, *arguments: Any) -> Any:
        """Have a hook run where the engine lives, in a worker that is there for it."""
        with self._worker.lock:
            now = self._worker.generation(self._what(hook))
            if hook != "begin" and self._lives_in != now:
                self._play_again(now)
            answer = self._ask(hook, arguments, now)
        self._past.append((hook, arguments, answer.value))
        vars(self).update(answer.attributes)
        if answer.rng is not None:
            self.np_random.bit_generator.state = dict(answer.rng)
        return answer.value

    def _ask(self, hook: str, arguments: tuple[Any, ...], now: int) -> Answer:
        order = Order(self._seat, hook, arguments, None if self._lives_in == now else self._made)
        self._lives_in = None  # if it fails, nobody knows what is left
        reply = self._worker.ask(order, self._what(hook))
        self._lives_in = now
        if isinstance(reply, Refused):
            raise reply.error
        return reply

    def _play_again(self, now: int) -> None:
        """Bring the engine in a new worker to where it was in the one that is lost."""
        if not self._past or (self.spec is not None and self.spec.nondeterministic):
            raise EnvBackendError(f"The engine of {self._what('step')} was lost with its worker.")
        for hook, arguments, shown in self._past:
            if self._ask(hook, arguments, now).value != shown:
                raise EnvBackendError(
                    f"The engine of {self._what('step')} was lost with its worker, and it could "
                    "not be brought back: played again, the episode shows something else."
                )

    def _what(self, hook: str) -> str:
        task = "" if self._task is None else f" of {self._task.name}"
        doing = {"begin": "reset", "act": "step", "review": "step"}.get(hook, hook)
        return f"{self._kind.__name__} (in {doing}{task})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a fresh env has a place of its own in the same worker, or in its copy."""
        return {**super().__getstate__(), "_seat": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._seat = self._worker.seat()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._kind,), self.__getstate__()


def put_to_work(env: gym.Env[Any, Any], worker: Worker) -> None:
    """Have the engine of an env, and its judge, run in a worker from now on.

    Args:
        env: an env of ours, wrapped or not, that has not been reset yet.
        worker: where.

    Raises:
        ConfigError: if it is no such env, or one whose class no other process can import.
    """
    bare = env.unwrapped
    if not isinstance(bare, TaskEnv):
        raise ConfigError(
            f"Only envs of coevo_gym run in worker processes, actual: {type(bare).__name__}."
        )
    kind = type(bare)
    if bare._begun or isinstance(bare, RemoteEnv):
        raise ConfigError(
            f"This {kind.__name__} has begun an episode, or runs in a worker already. Give a "
            "worker an env that has just been made."
        )
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"{kind.__name__} is defined in {kind.__module__}, which no other process can import. "
            "Put it into a module of its own."
        )
    bare.__class__ = _remote(kind)
    moved = cast(RemoteEnv, bare)
    moved._worker, moved._seat = worker, worker.seat()
    moved._lives_in, moved._made, moved._past = None, b"", []
    worker.modules = tuple(dict.fromkeys((*worker.modules, kind.__module__, *kind.engine_modules)))


_REMOTE: dict[type[TaskEnv], type[RemoteEnv]] = {}


def _remote(kind: type[TaskEnv]) -> type[RemoteEnv]:
    if kind not in _REMOTE:
        names = {"_kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
        made = type(kind.__name__, (RemoteEnv, kind), names)
        _REMOTE[kind] = cast(type[RemoteEnv], made)
    return _REMOTE[kind]


def _made(kind: type[TaskEnv]) -> RemoteEnv:
    remote = _remote(kind)
    return remote.__new__(remote)
