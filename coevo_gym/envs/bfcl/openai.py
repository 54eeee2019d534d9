"""BFCL as a chat with function calling, in the objects of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any, cast

import gymnasium as gym
from gymnasium.spaces import Dict
from gymnasium.spaces import Sequence as SequenceSpace
from gymnasium.utils import RecordConstructorArgs

from coevo_gym.envs.base import ACTION_SPACE
from coevo_gym.envs.bfcl.env import BFCLEnv

_NOT_READ = "Error: this call could not be read."
_FUNCTION = Dict({"name": ACTION_SPACE, "arguments": ACTION_SPACE})


class OpenAIToolCalls(gym.Wrapper[str, Any, str, Any], RecordConstructorArgs):
    """Act with assistant messages, and keep the chat that a model answers next.

    An action is an assistant message as a mapping, or the client's own object of it; its
    ``tool_calls`` are run, and without any it ends the turn. Its ``content`` is a text or a list
    of parts, of which the texts count. Arguments that are no JSON are answered as the env answers
    them; calls that do not fit into an action's 20,000 characters are answered as not read.

    Args:
        env: a BFCL env, wrapped or not.

    Attributes:
        messages: the chat so far: the ``messages`` of a request.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = OpenAIToolCalls(gym.make("CoEvolve-BFCL-v0"))
        >>> request, info = env.reset(options={"task_id": "bfcl/multi_turn_base_2"})
        >>> function = {"name": "pwd", "arguments": "{}"}
        >>> call = {"id": "call_0", "type": "function", "function": function}
        >>> observation, *_ = env.step({"role": "assistant", "tool_calls": [call]})
        >>> env.messages[-1]["tool_call_id"], env.messages[-1]["content"]
        ('call_0', '{"current_working_directory": "/simona"}')
        >>> env.tools[0]["type"]
        'function'
    """

    def __init__(self, env: gym.Env[str, str]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self.action_space = Dict(
            {"content": ACTION_SPACE, "tool_calls": SequenceSpace(Dict({"function": _FUNCTION}))}
        )
        self.messages: list[dict[str, Any]] = []

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The functions offered now: the ``tools`` of a request."""
        found: list[dict[str, Any]] = json.loads(self._bfcl.view.info["bfcl.tools"])
        return found

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode and a chat."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.messages = [{"role": "user", "content": observation}]
        return observation, info

    def step(self, action: Any) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take an assistant message, run its calls, and write down what came of it."""
        message = _as_mapping(action)
        calls = [_as_mapping(call) for call in message.get("tool_calls") or ()]
        content = _said(message.get("content") or "")
        observation, reward, terminated, truncated, info = self.env.step(_text(content, calls))
        self.messages.append({"role": "assistant", "content": content})
        results = self._bfcl.results
        if calls:
            self.messages[-1]["tool_calls"] = calls
            self.messages += [
                {"role": "tool", "tool_call_id": call.get("id", ""), "content": result}
                for call, result in zip(calls, chain(results, repeat(_NOT_READ)), strict=False)
            ]
        if not (calls and results) and not (terminated or truncated):
            self.messages.append({"role": "user", "content": observation})
        return observation, reward, terminated, truncated, info

    @property
    def _bfcl(self) -> BFCLEnv:
        return cast(BFCLEnv, self.unwrapped)


def _as_mapping(value: Any) -> dict[str, Any]:
    """A message or a call as a plain object."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True)
    if not isinstance(value, Mapping):
        raise TypeError(
            "An action is an assistant message as a mapping or as the client's object, "
            f"actual: {type(value).__name__}"
        )
    return dict(value)


def _said(content: Any) -> str:
    """The words of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(str(_as_mapping(part).get("text") or "") for part in content)


def _text(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """The message in the env's own notation; one with calls is its calls.

    Every call is a block that can be read by itself, so what the env leaves unread is at the end.
    """
    blocks = []
    for call in calls:
        function = _as_mapping(call.get("function") or {})
        arguments = function.get("arguments") or "{}"
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        block = {"name": function.get("name"), "arguments": arguments}
        # Spelled out, the end of a thought would hide the calls before it.
        code = json.dumps(block, ensure_ascii=False).replace("</think>", "\\u003c/think>")
        blocks.append(f"<tool_call>\n{code}\n</tool_call>")
    return "\n".join(blocks) if blocks else content
