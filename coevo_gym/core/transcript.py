"""The exact messages that a model was sent in an episode, and its answers.

Each prompt of a chat usually repeats the previous one, so a :class:`Transcript` stores each
distinct message once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RoleAndText = tuple[str, str]
"""A message of a chat: its role and its text."""
NOTHING = -1
"""Index that stands for no message, or no list of tools."""


class ModelCall(NamedTuple):
    """A model's answer to the chat that it was sent.

    Attributes:
        messages: the chat, in order.
        answer: the complete answer, including thoughts.
        tools: the tools that the model could call, as JSON text; "" for none.
        prompt_tokens: number of tokens of the chat; 0 if unknown.
        completion_tokens: number of tokens of the answer; 0 if unknown.
    """

    messages: tuple[RoleAndText, ...]
    answer: str
    tools: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatPart(NamedTuple):
    """Consecutive steps of an episode whose prompts extend each other.

    Attributes:
        first: index of the first step.
        chats: for each step, the messages that are new in its prompt, as indices of
            :attr:`Transcript.messages`. The first step's are the whole prompt.
        answers: for each step, the index of its answer.
    """

    first: int
    chats: tuple[tuple[int, ...], ...]
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """All model calls in an episode; each distinct message is stored once.

    Attributes:
        messages: the distinct messages, in the order in which they were first used.
        prompts: for each step, the indices of the messages in its prompt; () without a model call.
        answers: for each step, the index of its answer; :data:`NOTHING` without a model call.
        tools: the distinct lists of tools, each as JSON text.
        offered: for each step, the index of its tools, or :data:`NOTHING`.
        tokens: for each step, the number of tokens in its prompt and in its answer; 0 if unknown.

    Example:
        >>> first = ModelCall((("user", "Where am I?"),), "look")
        >>> chat = (*first.messages, ("assistant", "look"), ("user", "A kitchen."))
        >>> transcript = Transcript.of([first, ModelCall(chat, "open fridge")])
        >>> transcript.prompts
        ((0,), (0, 1, 2))
        >>> [part.chats for part in transcript.parts()]
        [((0,), (2,))]
    """

    messages: tuple[RoleAndText, ...]
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[int, ...]
    tools: tuple[str, ...] = ()
    offered: tuple[int, ...] = ()
    tokens: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.prompts)
        if len(self.answers) != n or {len(self.offered), len(self.tokens)} - {0, n}:
            raise ValueError("Transcript needs one prompt, answer and count of tokens per step.")
        places = [*self.answers, *(place for prompt in self.prompts for place in prompt)]
        if places and not NOTHING <= min(places) <= max(places) < len(self.messages):
            raise ValueError("Transcript has an index without a message.")
        if self.offered and not NOTHING <= min(self.offered) <= max(self.offered) < len(self.tools):
            raise ValueError("Transcript has an index without a list of tools.")

    @classmethod
    def of(cls, calls: Sequence[ModelCall | None]) -> Transcript | None:
        """Return the transcript of an episode's model calls, one per step.

        Return None if no step has a model call.
        """
        if not any(calls):
            return None
        messages: dict[RoleAndText, int] = {}
        tools: dict[str, int] = {}
        prompts, answers, offered, tokens = [], [], [], []
        for call in calls:
            if call is None:
                call = ModelCall((), "")
                answers.append(NOTHING)
            else:
                for message in call.messages:
                    messages.setdefault(message, len(messages))
                answers.append(messages.setdefault(("assistant", call.answer), len(messages)))
            prompts.append(tuple(messages[message] for message in call.messages))
            offered.append(tools.setdefault(call.tools, len(tools)) if call.tools else NOTHING)
            tokens.append((call.prompt_tokens, call.completion_tokens))
        return cls(
            tuple(messages), tuple(prompts), tuple(answers), tuple(tools), tuple(offered),
            tuple(tokens),
        )  # fmt: skip

    def prompt_at(self, step: int) -> tuple[RoleAndText, ...]:
        """Return the messages that the model was sent at a step."""
        return tuple(self.messages[place] for place in self.prompts[step])

    def parts(self) -> Iterator[ChatPart]:
        """Yield the episode's chats: one if each prompt extends the previous one, else several."""
        return chat_parts(self.prompts, self.answers)


def chat_parts(prompts: Sequence[Sequence[int]], answers: Sequence[int]) -> Iterator[ChatPart]:
    """Split the steps of a transcript into chats; see :meth:`Transcript.parts`."""
    first, chats = 0, list[tuple[int, ...]]()
    for step, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        before = [*prompts[step - 1], answers[step - 1]] if chats else []
        if chats and list(prompt[: len(before)]) == before and answer != NOTHING:
            chats.append(tuple(prompt[len(before) :]))
            continue
        if chats:
            yield ChatPart(first, tuple(chats), tuple(answers[first:step]))
        first, chats = (step, [tuple(prompt)]) if answer != NOTHING else (step + 1, [])
    if chats:
        yield ChatPart(first, tuple(chats), tuple(answers[first : first + len(chats)]))
