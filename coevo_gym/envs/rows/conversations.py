"""Episodes on a row: a single answer, a dialogue, or the user's own env."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import thaw
from coevo_gym.core.thoughts import without_thoughts
from coevo_gym.core.tool_calls import Call, read_hermes, write_result
from coevo_gym.envs.rows.caller import (
    NUMBERS,
    Caller,
    Respond,
    Row,
    Verify,
    describe_answer,
    require_score,
)
from coevo_gym.envs.rows.source import pack_function, unpack_function
from coevo_gym.envs.rows.tools import OpenTools, ToolSet, error_text

_DIGITS = 9
"""Decimal places of a sum of rewards. Floats such as ten times 0.1 do not sum to exactly 1."""


class RowEpisode(Protocol):
    """An episode in which the agent answers one row.

    Attributes:
        caller: calls the user's functions.
        calls: operations of the latest answer: ``answer``, or the tools that it called.
        error_kind: kind of the first error in the latest answer, or "".
    """

    caller: Caller
    calls: tuple[str, ...] = ("answer",)
    error_kind: str = ""

    def begin(self) -> str:
        """Return the first observation."""

    def step(self, text: str) -> tuple[str, bool]:
        """Process the agent's answer. Return the next observation, and True at the end."""

    def score(self) -> float:
        """Return the sum of the rewards; 0 if there are none."""

    def close(self) -> None:
        """Release the episode's resources."""


@dataclass(frozen=True)
class RowRules:
    """The user's functions, and the rules for calling them.

    Attributes:
        verify: judges the last answer; None if the env's rewards are the score.
        respond: returns the user's next message; None for one answer per episode.
        env: creates an env or an object with ``reset(row)`` and ``step(text)`` for each episode.
        timeout_s: maximum seconds for each call.
        tools: the agent's tools; None for none.
    """

    verify: Verify | None
    respond: Respond | None = None
    env: Callable[[], Any] | None = None
    timeout_s: float = 60.0
    tools: ToolSet | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        functions = [
            pack_function(name, getattr(self, name)) for name in ("verify", "respond", "env")
        ]
        return _unpickle_rules, (*functions, self.timeout_s, self.tools)

    @property
    def takes_one_answer(self) -> bool:
        """True if an episode consists of one answer."""
        return self.respond is None and self.env is None and self.tools is None

    def create_episode(self, row: Row, prompt: str) -> RowEpisode:
        """Return a new episode on a row.

        Raises:
            EnvBackendError: if the env or an instance of a tool class cannot be created.
        """
        caller = Caller(self.timeout_s)
        try:
            if self.env is not None:
                env = caller.call("env", self.env, f"for the row {row.get('id', row)!r}")
                return _Wrapped(env, row, caller)
            dialogue = _Dialogue(self.respond, row, prompt, caller)
            if self.tools is None:
                return dialogue
            return _ToolUse(dialogue, self.tools.open_tools(row, caller))
        except EnvBackendError:
            caller.close()
            raise

    def judge(self, conversation: RowEpisode, row: Row, answer: str) -> float:
        """Return the score of a finished episode in [0, 1].

        Raises:
            EnvBackendError: if ``verify`` fails or returns anything else, or the rewards do not sum
                to a number in [0, 1].
        """
        if self.tools is not None and read_hermes(without_thoughts(answer)):
            answer = ""  # tool calls do not count as an answer
        about, verify = describe_answer(row, answer), self.verify
        if verify is None:
            rule = "the rewards of an episode must sum to a number in [0, 1]"
            return require_score(conversation.score(), rule, about)
        value = conversation.caller.call("verify", lambda: verify(thaw(row), answer), about)
        return require_score(value, "verify must return a bool or a score in [0, 1]", about)


def _unpickle_rules(
    verify: object, respond: object, env: object, timeout_s: float, tools: ToolSet | None
) -> RowRules:
    return RowRules(
        unpack_function(verify), unpack_function(respond), unpack_function(env), timeout_s, tools
    )


class _Dialogue(RowEpisode):
    """A conversation with a user simulated by ``respond``; without ``respond``, one answer."""

    def __init__(self, respond: Respond | None, row: Row, prompt: str, caller: Caller) -> None:
        self._respond, self._row, self.caller = respond, row, caller
        self._messages = [{"role": "user", "content": prompt}]

    def begin(self) -> str:
        return self._messages[0]["content"]

    def step(self, text: str) -> tuple[str, bool]:
        self._messages.append({"role": "assistant", "content": text})
        respond = self._respond
        if respond is None:
            return "", True
        messages = [dict(message) for message in self._messages]
        about = describe_answer(self._row, text)
        reply = self.caller.call("respond", lambda: respond(thaw(self._row), messages), about)
        if reply is None:
            return "", True
        if not isinstance(reply, str):
            raise EnvBackendError(f"respond must return a string or None, got {reply!r} {about}.")
        self._messages.append({"role": "user", "content": reply})
        return reply, False

    def score(self) -> float:
        return 0.0

    def close(self) -> None:
        self.caller.close()


class _ToolUse(RowEpisode):
    """A conversation in which the agent may call tools before each of its answers."""

    def __init__(self, dialogue: RowEpisode, tools: OpenTools) -> None:
        self._dialogue, self._tools, self.caller = dialogue, tools, dialogue.caller

    def begin(self) -> str:
        return self._dialogue.begin()

    def step(self, text: str) -> tuple[str, bool]:
        self.calls, self.error_kind = ("answer",), ""
        items = read_hermes(without_thoughts(text))
        if not items:
            return self._dialogue.step(text)
        ran, results = [], []
        for item in items:
            if isinstance(item, Call):
                ran.append(item.name)
                output, kind = self._tools.run_call(item)
            else:
                output, kind = error_text(f"a call cannot be read: {item.reason}"), "parse"
            results.append(write_result(output))
            self.error_kind = self.error_kind or kind
        self.calls = tuple(ran)
        return "\n".join(results), False

    def score(self) -> float:
        return self._dialogue.score()

    def close(self) -> None:
        try:
            self._tools.close()
        finally:
            self._dialogue.close()


class _Wrapped(RowEpisode):
    """A Gymnasium env, or an object with ``reset(row)`` and ``step(text)``."""

    def __init__(self, env: Any, row: Row, caller: Caller) -> None:
        self._env, self._row, self.caller, self._reward = env, row, caller, 0.0

    def begin(self) -> str:
        row = thaw(self._row)

        def reset() -> Any:
            if isinstance(self._env, gym.Env):
                return self._env.reset(options={"row": row})
            return self._env.reset(row)

        about = f"for the row {self._row.get('id', row)!r}"
        output = self.caller.call("reset", reset, about)
        observation = output[0] if isinstance(output, tuple) else output
        if isinstance(observation, str):
            return observation
        raise EnvBackendError(f"reset must return a string, got {observation!r} {about}.")

    def step(self, text: str) -> tuple[str, bool]:
        about = describe_answer(self._row, text)
        output = self.caller.call("step", lambda: self._env.step(text), about)
        match output:
            case (str(observation), reward, done):
                pass
            case (str(observation), reward, terminated, truncated, _):
                done = terminated or truncated
            case _:
                reward = done = None
        if not (isinstance(reward, NUMBERS) and isinstance(done, (bool, np.bool_))):
            raise EnvBackendError(
                "step must return (observation, reward, done) or Gymnasium's five values, where "
                "the observation is a string, the reward a number and the end flags bools, got "
                f"{output!r} {about}."
            )
        self._reward += float(reward)
        return observation, bool(done)

    def score(self) -> float:
        return round(self._reward, _DIGITS)

    def close(self) -> None:
        try:
            if hasattr(self._env, "close"):
                self.caller.call("close", self._env.close, "at the end of an episode")
        finally:
            self.caller.close()
