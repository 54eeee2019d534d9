"""The course of an episode on a row: one answer, a dialogue, or an env of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import thaw
from coevo_gym.envs.rows.calls import (
    Respond,
    Row,
    Verify,
    about_answer,
    call,
    checked,
    reply_of,
    score_of,
)


class RowEpisode(Protocol):
    """One episode on a row."""

    def begin(self) -> str:
        """Return the first observation."""

    def answer(self, text: str) -> tuple[str, bool]:
        """Take the agent's answer. Return the next observation, and True at the end."""

    def score(self) -> float:
        """Return the sum of the rewards in [0, 1]; 0 if there are none."""

    def close(self) -> None:
        """Release what the episode uses."""


@dataclass(frozen=True)
class RowRules:
    """The user's functions, and how they are called.

    Attributes:
        verify: judges the last answer; None if the env's rewards are the score.
        respond: returns the user's next message; None for one answer per episode.
        env: creates an env or an object with ``reset(row)`` and ``step(text)`` for each episode.
        timeout_s: maximum seconds for each call.
    """

    verify: Verify | None
    respond: Respond | None = None
    env: Callable[[], Any] | None = None
    timeout_s: float = 60.0

    @property
    def one_answer(self) -> bool:
        """True if an episode consists of one answer."""
        return self.respond is None and self.env is None

    def converse(self, row: Row, prompt: str) -> RowEpisode:
        """Return a new episode on a row.

        Raises:
            EnvBackendError: if the env cannot be created.
        """
        if self.env is not None:
            made = call("env", self.env, self.timeout_s, f"for the row {row.get('id', row)!r}")
            return _Wrapped(made, row, self.timeout_s)
        return _Dialogue(self.respond, row, prompt, self.timeout_s)

    def judge(self, conversation: RowEpisode, row: Row, answer: str) -> float:
        """Return the score of a finished episode in [0, 1].

        Raises:
            EnvBackendError: if ``verify`` fails, or the rewards do not sum to a number in [0, 1].
        """
        if self.verify is None:
            rule = "the rewards of an episode must sum to a number in [0, 1]"
            return checked(conversation.score(), rule, about_answer(row, answer))
        return score_of(self.verify, row, answer, self.timeout_s)


class _Dialogue:
    """A conversation with a user, whom ``respond`` plays; without it, one answer."""

    def __init__(self, respond: Respond | None, row: Row, prompt: str, timeout_s: float) -> None:
        self._respond, self._row, self._timeout_s = respond, row, timeout_s
        self._messages = [{"role": "user", "content": prompt}]

    def begin(self) -> str:
        return self._messages[0]["content"]

    def answer(self, text: str) -> tuple[str, bool]:
        self._messages.append({"role": "assistant", "content": text})
        if self._respond is None:
            return "", True
        reply = reply_of(self._respond, self._row, self._messages, self._timeout_s)
        if reply is None:
            return "", True
        self._messages.append({"role": "user", "content": reply})
        return reply, False

    def score(self) -> float:
        return 0.0

    def close(self) -> None:
        return


class _Wrapped:
    """A Gymnasium env, or an object with ``reset(row)`` and ``step(text)``."""

    def __init__(self, made: Any, row: Row, timeout_s: float) -> None:
        self._made, self._row, self._timeout_s, self._reward = made, row, timeout_s, 0.0

    def begin(self) -> str:
        row = thaw(self._row)

        def reset() -> Any:
            if isinstance(self._made, gym.Env):
                return self._made.reset(options={"row": row})
            return self._made.reset(row)

        about = f"for the row {self._row.get('id', row)!r}"
        found = call("reset", reset, self._timeout_s, about)
        observation = found[0] if isinstance(found, tuple) else found
        if isinstance(observation, str):
            return observation
        raise EnvBackendError(f"reset must return a text, got {observation!r} {about}.")

    def answer(self, text: str) -> tuple[str, bool]:
        about = about_answer(self._row, text)
        found = call("step", lambda: self._made.step(text), self._timeout_s, about)
        match found:
            case (str(observation), reward, bool(done)):
                pass
            case (str(observation), reward, bool(terminated), bool(truncated), _):
                done = terminated or truncated
            case _:
                raise EnvBackendError(
                    "step must return (observation, reward, done), or Gymnasium's five values, "
                    f"with a text as the observation, got {found!r} {about}."
                )
        if not isinstance(reward, (bool, int, float)):
            raise EnvBackendError(
                f"step must return a number as the reward, got {reward!r} {about}."
            )
        self._reward += float(reward)
        return observation, done

    def score(self) -> float:
        return self._reward

    def close(self) -> None:
        if hasattr(self._made, "close"):
            call("close", self._made.close, self._timeout_s, "at the end of an episode")
