"""The env of one client: what it asks for and what it is shown, whatever it is connected by."""

from __future__ import annotations

from typing import Annotated, Any, cast

import gymnasium as gym
from pydantic import BaseModel, ConfigDict, Field

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import EnvBackendError, ResetNeeded
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.envs.base import TaskEnv
from coevo_gym.serve.shelf import EnvShelf

_Text = Annotated[str, Field(min_length=1, max_length=255)]


class ResetOrder(BaseModel):
    """What a client may say when it begins an episode.

    Attributes:
        split: which tasks: ``train`` (those of the curriculum, recorded), ``val`` or ``test``.
        seed: of the env, where the task is not the curriculum's; it picks the task.
        task: name or id of a task to run, unrecorded.
        slot: row of a trainer of which this is a copy; the copies of a slot share a task.
        policy_version: version of the policy that is about to act.
        choices: how many of the actions to choose from are to be shown; 0 for none.
        episode_id: a name for the episode, for the client's own use.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    split: Split = Split.TRAIN
    seed: int | None = Field(default=None, ge=0)
    task: _Text | None = None
    slot: _Text | None = None
    policy_version: int = Field(default=0, ge=0)
    choices: int = Field(default=0, ge=0, le=1024)
    episode_id: _Text | None = None


class ActionOrder(BaseModel):
    """An action, as a client sends it.

    Attributes:
        action: what to do, in the env's own words.
        metadata: ignored; OpenEnv's typed clients send it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="TextAction")

    action: str
    metadata: dict[str, Any] = Field(default_factory=dict, exclude=True)


class ClientEnv:
    """An env as one client uses it: its messages in, frames out. For one thread at a time.

    A frame is made of what an agent may see (:class:`~coevo_gym.core.trajectory.View`), and of the
    outcome once the episode is over. So no task, verifier or solution can be in it.

    Args:
        benchmark: says what may be chosen from.
        shelf: where envs are taken from.
        session: what is practised on the training split.
    """

    def __init__(self, benchmark: Benchmark, shelf: EnvShelf, session: SessionFace) -> None:
        self._benchmark, self._shelf, self._session = benchmark, shelf, session
        self._env: gym.Env[str, str] | None = None
        self._sampler: EvolvingTaskSampler | None = None
        self._order = ResetOrder()
        self._over, self._episode = True, ""

    def reset(self, order: ResetOrder) -> dict[str, Any]:
        """Begin an episode; returns its first frame.

        Raises:
            EnvBackendError: if the engine fails, or there is no ticket in time.
            TaskError: if there is no such task.
            SplitLeakError: if a copy of a held-out task is asked for as a training task.
        """
        self._over = True
        if self._env is None or order.split is not self._order.split:
            self.close()
            self._env = self._shelf.take(str(order.split))
            if order.split is Split.TRAIN:
                self._sampler = EvolvingTaskSampler(
                    self._env, evolve="manual", session=self._session
                )
        self._order = order
        options: dict[str, Any] = {} if order.task is None else {"task_id": order.task}
        env: gym.Env[str, str] = self._env
        if self._sampler is not None:
            env = self._sampler
            options |= {"slot": order.slot, "policy_version": order.policy_version}
        try:
            env.reset(seed=order.seed, options=options)
        except EnvBackendError:
            self._discard()
            raise
        ticket = None if self._sampler is None else self._sampler.ticket
        self._episode = order.episode_id or ("" if ticket is None else ticket.id)
        self._over = False
        return self._frame(None, terminated=False, truncated=False)

    def step(self, order: ActionOrder) -> dict[str, Any]:
        """Carry out an action; returns the next frame.

        Raises:
            ResetNeeded: if no episode is running.
            EnvBackendError: if the engine fails. The episode is lost then, its ticket given back.
        """
        if self._over or self._env is None:
            raise ResetNeeded("No episode is running. Send a reset first.")
        env = self._env if self._sampler is None else self._sampler
        try:
            _, reward, terminated, truncated, _ = env.step(order.action)
        except Exception:  # whatever it is, nobody knows what state the engine is in
            self._over = True
            self._discard()
            raise
        self._over = terminated or truncated
        return self._frame(float(reward), terminated=terminated, truncated=truncated)

    def state(self) -> dict[str, Any]:
        """Which episode it is, and how far it has come."""
        steps = 0 if self._env is None or not self._episode else self._bare.info["step"]
        return {"episode_id": self._episode or None, "step_count": steps}

    def close(self) -> None:
        """Give the running episode and the env back; twice is fine."""
        env, self._env = self._env, None
        sampler, self._sampler = self._sampler, None
        self._over = True
        if sampler is not None:
            sampler.abandon()
        if env is not None:
            self._shelf.put(str(self._order.split), env)

    def _discard(self) -> None:
        """Close an env whose engine has failed, and give its ticket back."""
        env, self._env = self._env, None
        sampler, self._sampler = self._sampler, None
        try:
            if sampler is not None:
                sampler.abandon(EndReason.WORKER_LOST)
        finally:
            if env is not None:
                env.close()

    def _frame(self, reward: float | None, *, terminated: bool, truncated: bool) -> dict[str, Any]:
        view, over = self._bare.view, terminated or truncated
        shown: dict[str, Any] = dict(view.info)
        admissible = shown.pop("admissible", ())
        if over:
            info = self._bare.info
            shown |= {name: info[name] for name in ("success", "score", "end_reason")}
        observation = {
            "text": view.observation,
            "instruction": view.instruction,
            "admissible": list(admissible),
            "info": shown,
        }
        if self._order.choices and not over:
            observation["choices"] = list(self._benchmark.choices(view)[: self._order.choices])
        elif self._order.choices:
            observation["choices"] = []
        ends = {"terminated": terminated, "truncated": truncated}
        return {"observation": observation, "reward": reward, "done": over, "metadata": ends}

    @property
    def _bare(self) -> TaskEnv:
        return cast(TaskEnv, cast(gym.Env[str, str], self._env).unwrapped)
