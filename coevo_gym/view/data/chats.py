"""Episodes as chats: the exact messages that a model was sent, in OpenAI's form.

An episode is one chat if each prompt extends the previous one. Otherwise, for example if a window
of steps is shown, it is one chat per prompt that does not, and the chats repeat messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from coevo_gym.agents.endpoint.endpoint import chat_messages
from coevo_gym.core.seams import Message, Prompt
from coevo_gym.core.tool_calls import read_hermes
from coevo_gym.core.transcript import NOTHING, RoleAndText, chat_parts
from coevo_gym.view.data.episodes import StoredEpisode

_MAX_CHARS = 4_000_000


class Chat(NamedTuple):
    """A chat in which a policy acted in an episode.

    Attributes:
        messages: the messages in OpenAI's form.
        answers: the places of the policy's answers in these steps, in order. Assistant messages
            elsewhere only repeat earlier answers.
        first: index of the first step.
        tools: the tools at the last step, as JSON text; "" for none.
        exact: True if a model was sent exactly these messages; False if they are made from the
            observations and actions, because the policy does not chat or an older version ran it.
    """

    messages: list[dict[str, Any]]
    answers: tuple[int, ...]
    first: int
    tools: str
    exact: bool


def chats_of(episode: StoredEpisode) -> list[Chat]:
    """Return the chats of an episode, in order."""
    transcript = episode.body.get("transcript")
    if transcript is None:
        return [_rebuilt_chat(episode)]
    texts, chats = transcript["messages"], []
    for part in chat_parts(transcript["prompts"], transcript["answers"]):
        messages, answers = list[RoleAndText](), list[int]()
        for new, answer in zip(part.chats, part.answers, strict=True):
            messages += [texts[place] for place in new]
            answers.append(len(messages))
            messages.append(texts[answer])
        offered = transcript["offered"][part.first + len(part.answers) - 1]
        tools = "" if offered == NOTHING else transcript["tools"][offered]
        form = _with_tool_calls if episode.calls_tools else _plain
        chats.append(Chat(form(messages), tuple(answers), part.first, tools, True))
    return chats


def _rebuilt_chat(episode: StoredEpisode) -> Chat:
    steps, asked = episode.body["steps"], episode.about["instruction"]
    messages, answers = list[RoleAndText](), []
    for number, step in enumerate(steps):
        seen = step["shown"]
        if number == 0 and asked and asked not in seen:
            seen = f"{asked}\n\n{seen}"
        messages.append(("user", seen))
        answers.append(len(messages))
        messages.append(("assistant", step.get("said") or step["action"]))
    return Chat(_plain(messages), tuple(answers), 0, "", False)


def _plain(messages: Sequence[RoleAndText]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in messages]


def _with_tool_calls(messages: Sequence[RoleAndText]) -> list[dict[str, Any]]:
    """Return messages as an endpoint gets them: calls are JSON, and not part of the text."""
    calls = read_hermes(messages[-1][1]) if messages[-1][0] == "assistant" else ()
    results = [Message("tool", "")] * len(calls)  # without results, calls would stay text
    chat = (*(Message(role, text) for role, text in messages), *results)
    return chat_messages(Prompt(chat), _MAX_CHARS)[: len(messages)]


def chat_rows(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    """Yield a row per chat of an episode; see :data:`~coevo_gym.view.data.columns.CHATS`."""
    chats = chats_of(episode)
    for part, chat in enumerate(chats):
        yield {
            **episode.about,
            "part": part,
            "parts": len(chats),
            "exact": chat.exact,
            "prompt_messages": chat.answers[0] if chat.answers else len(chat.messages),
            "messages": chat.messages,
            "tools": chat.tools or None,
        }
