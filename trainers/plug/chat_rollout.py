"""Episodes for a trainer that keeps the chat itself: what it is told, and what its model answered.

Trainers of language models send out rows, K copies of each, and each copy talks. This turns one
such place into episodes of a curriculum: a copy says which row it is of, and gets a task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym

from coevo_gym.agents.chat.history import Conversation
from coevo_gym.core.errors import EnvBackendError, ResetNeeded
from coevo_gym.core.seams import Message
from coevo_gym.core.task import Split, Task, parse_split
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.envs.base import TaskEnv
from coevo_gym.prompts import PromptTemplate, load_prompt
from coevo_gym.prompts.answers import action_of

logger = logging.getLogger(__name__)

MAX_LOST_IN_A_ROW = 3
"""So many episodes that faults took, one after the other, end the training: nothing works here."""


class ChatRollout:
    """One episode after another, as a chat.

    A training episode is one of the session's, and is reported by itself when it ends. An
    evaluation episode plays a task of another split, and no session hears of it.

    A fault of the engine ends an episode without an outcome: :attr:`lost` is then true, and the
    trainer has to leave the rollout out. It is never a reward of 0.

    Args:
        env_id: the env, such as ``"CoEvolve-WebShop-v0"``.
        session: what is practised; rounds of evolution that are due run before an episode begins.
        prompt: the words in which a model is told about the env; default: the benchmark's.
        arguments: further arguments of the env, such as ``max_steps``.

    Attributes:
        opening: what the model was told first.
        over: whether nothing more can be answered.
        lost: whether a fault has taken the episode.
        reward: what the env has given so far.

    Example:
        >>> import coevo_gym
        >>> from coevo_gym import CurriculumSession
        >>> from coevo_gym.methods.coevolve import CoEvolve
        >>> tasks = coevo_gym.tasks("webshop", "train")[:8]
        >>> session = CurriculumSession(CoEvolve(tasks=tasks), group_size=2)
        >>> rollout = ChatRollout("CoEvolve-WebShop-v0", session)
        >>> [message.role for message in rollout.begin(slot="row 0")]
        ['system', 'user']
        >>> page = rollout.answer("<action>search[lamp]</action>")
        >>> rollout.end()
        0.0
    """

    def __init__(
        self,
        env_id: str,
        session: SessionFace,
        *,
        prompt: PromptTemplate | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._env_id, self._arguments = env_id, dict(arguments or {})
        self._sampler = EvolvingTaskSampler(self._make(Split.TRAIN), session=session)
        self._held_out: dict[Split, gym.Env[Any, Any]] = {}
        self._live: gym.Env[Any, Any] = self._sampler
        self._prompt = prompt or load_prompt(self._bare.benchmark)
        self._faults: list[Exception] = []
        self._task: Task | None = None
        self._said: list[str] = []
        self.opening: tuple[Message, ...] = ()
        self.over, self.lost, self.reward = True, False, 0.0

    @property
    def info(self) -> dict[str, Any]:
        """The info of the latest reset or step, and how the episode has ended since."""
        return self._bare.info

    def begin(
        self,
        *,
        split: str = "train",
        task: str | None = None,
        slot: str | None = None,
        policy_version: int = 0,
    ) -> tuple[Message, ...]:
        """Begin an episode; one under way counts as nothing.

        Args:
            split: ``"train"`` for an episode of the session, else where ``task`` is from.
            task: name or id of an evaluation task; None for one that chance picks.
            slot: where the copies of a row meet, as a session's ``take`` says.
            policy_version: version of the policy that is about to answer.

        Returns:
            What to tell the model, which is to answer next. () if a fault has taken the episode.

        Raises:
            EnvBackendError: if faults have taken the last three episodes.
            ConfigError: if the session has no task to give.
        """
        if len(self._faults) >= MAX_LOST_IN_A_ROW:
            raise EnvBackendError(
                f"A fault has taken {len(self._faults)} episodes of {self._env_id} in a row, the "
                f"last one: {self._faults[-1]}"
            ) from self._faults[-1]
        self._live, self._task = self._env_of(parse_split(split)), None
        if self._live is self._sampler:
            return self._begin({"slot": slot, "policy_version": policy_version})
        return self._begin({"task_id": task} if task else {})

    def again(self) -> tuple[Message, ...]:
        """Begin the task of the latest episode once more, for a trainer that needs an outcome.

        The session hears nothing of it.

        Raises:
            EnvBackendError: if that episode was lost before its task was known.
        """
        if self._task is None:
            raise EnvBackendError(f"An episode of {self._env_id} did not begin.") from (
                self._faults[-1] if self._faults else None
            )
        return self._begin({"task": self._task})

    def recover(self) -> str:
        """Bring an episode that a fault has taken back to where it was, for such a trainer.

        It is begun :meth:`again`, and told all that was answered, the last answer included.

        Returns:
            What that last answer led to.

        Raises:
            EnvBackendError: if the engine fails again.
        """
        said, page = list(self._said), ""
        self.again()
        for text in said:
            if not self.over:
                page = self.answer(text)
        if self.lost:
            raise EnvBackendError(
                f"A fault has taken an episode of {self._env_id} twice: {self._faults[-1]}"
            ) from self._faults[-1]
        return page

    def answer(self, said: str) -> str:
        """Take in what the model has answered.

        Args:
            said: any text; the action in it is found as the prompt asks for it.

        Returns:
            The next user message; the last page once the episode is over.

        Raises:
            ResetNeeded: if the episode is over.
        """
        if self.over:
            raise ResetNeeded("The episode is over; answer() needs a begin() first.")
        self._said.append(said)
        action = action_of(said, self._prompt.header.answer)
        try:
            observation, reward, terminated, truncated, _ = self._live.step(action)
        except Exception as error:
            self._lose(error)
            if not isinstance(error, EnvBackendError):
                raise
            return ""
        self.reward += float(cast(Any, reward))
        self.over = terminated or truncated
        self._faults.clear()
        return str(observation) if self.over else self._prompt.turn(self._bare.view)

    def end(self, reason: EndReason = EndReason.AGENT_DONE) -> float | None:
        """The outcome; an episode that still runs is ended and graded as it stands.

        Args:
            reason: why the model does not go on.

        Returns:
            1.0 for success, else 0.0; None if a fault has taken the episode.
        """
        if not self.over:
            try:
                (self._sampler if self._live is self._sampler else self._bare).cut(reason)
                self.over = True
            except EnvBackendError as error:
                self._lose(error)
        return None if self.lost else float(self.info["success"])

    def tasks(self, split: Split) -> Sequence[Task]:
        """The native tasks of a split that an episode may play."""
        return cast(TaskEnv, self._env_of(split).unwrapped).tasks

    def abandon(self) -> None:
        """Give the episode back: it counts as nothing."""
        self._sampler.abandon()
        self.over = True

    def close(self) -> None:
        """Give the episode back and close the envs; twice is fine."""
        self.abandon()
        for env in (self._sampler, *self._held_out.values()):
            env.close()

    @property
    def _bare(self) -> TaskEnv:
        return cast(TaskEnv, self._live.unwrapped)

    def _begin(self, options: dict[str, Any]) -> tuple[Message, ...]:
        self._sampler.abandon()
        self.over, self.lost, self.reward = False, False, 0.0
        self.opening, self._said = (), []
        try:
            self._live.reset(options=options)
        except EnvBackendError as error:
            self._lose(error)
            return ()
        self._task = self._bare.task
        told = Conversation(self._bare.view, self._prompt)
        self.opening = (*told.system(), told.user(0, told.asked(0)))
        return self.opening

    def _env_of(self, split: Split) -> gym.Env[Any, Any]:
        """Where episodes of a split run."""
        if split is Split.TRAIN:
            return self._sampler
        if split not in self._held_out:
            self._held_out[split] = self._make(split)
        return self._held_out[split]

    def _make(self, split: Split) -> gym.Env[Any, Any]:
        return gym.make(self._env_id, split=str(split), disable_env_checker=True, **self._arguments)

    def _lose(self, error: Exception) -> None:
        """The episode is over without an outcome, and its ticket is given back."""
        self._sampler.abandon()
        self.over = self.lost = True
        self._faults.append(error)
        logger.warning("rollout lost env=%s: %s: %s", self._env_id, type(error).__name__, error)


def chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as the dicts that chat templates take."""
    return [{"role": message.role, "content": message.content} for message in messages]
