"""The part of an episode that a chat model is shown: five kinds of history.

Each is a pure function of the view, so an agent keeps no state: what was said and sampled lies in
the view's history. An answer that is shown as it was sampled carries its token ids; a prompt that
goes on from the one before thus shares a training segment with it. An answer that was changed has
no ids and is prompt text like any other, which is not trained on again.

They follow AgentEvolver (Zhai et al., arXiv 2511.10395): append only, thoughts dropped, sliding
window, a history that the model itself manages, and the bare recent steps that its exploration
sees. Where one of ours differs, it says so.

Cues are told in all of them: in the system message, which a prompt without one then gets; before
the first user message; after every user message. They are the same in all of an episode, so that a
prompt goes on from the one before as it does without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from coevo_gym.core.seams import Message
from coevo_gym.core.trajectory import CuePlace, View
from coevo_gym.prompts import AnswerStyle, PromptTemplate
from coevo_gym.prompts.answers import answer_of, without_thoughts

MAX_RECALLED = 160
"""Characters of an action in a memory message."""
WINDOW_CHARS = 24_000
"""Characters of past steps in a window of no set number of steps."""

_DROP = re.compile(r"<drop>([0-9,\- ]{1,200})</drop>")
_NOTE = re.compile(r'<note n="([0-9,\- ]{1,200})">(.{1,2000}?)</note>', re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


@dataclass(frozen=True)
class Conversation:
    """An episode as a chat: each step is a user message and the answer to it, the last unanswered.

    Attributes:
        view: what there is to tell.
        prompt: how it is told.
        thinking: whether the model shall think before it answers.
        style: how it is asked to write its answers.
    """

    view: View
    prompt: PromptTemplate
    thinking: bool = False
    style: AnswerStyle = "plain"

    @property
    def answered(self) -> int:
        """How many steps have an answer; the index of the one that has none."""
        return len(self.view.history)

    def system(self, step: int = 0) -> tuple[Message, ...]:
        """The system message as of a step; () if the prompt has none, and no cue makes one."""
        text = self.prompt.system(self._at(step), thinking=self.thinking, style=self.style)
        return (Message("system", text),) if text else ()

    def asked(self, step: int) -> str:
        """The text of a step's user message, without its cues."""
        write = self.prompt.turn if step else self.prompt.first
        return write(self._at(step), thinking=self.thinking, style=self.style)

    def user(self, step: int, text: str) -> Message:
        """The user message with this text that begins at a step, with its cues."""
        before = self._cues("first") if step == 0 else ()
        return Message("user", "\n\n".join([*before, text, *self._cues("turn")]))

    def said(self, step: int) -> Message:
        """The answer to a past step, as it was sampled."""
        turn = self.view.history[step]
        ids = turn.decision.ids if turn.decision is not None else ()
        text = turn.said or answer_of(turn.action, self.prompt.header.answer)
        return Message("assistant", text, ids)

    def _cues(self, place: CuePlace) -> tuple[str, ...]:
        return tuple(cue.text for cue in self.view.cues if cue.place == place)

    def _at(self, step: int) -> View:
        """The view that a step was taken in."""
        if step == self.answered:
            return self.view
        turn, history = self.view.history[step], self.view.history[:step]
        return replace(self.view, observation=turn.observation, info=turn.info, history=history)


def causal(conversation: Conversation) -> tuple[Message, ...]:
    """All that was asked and said; each prompt goes on from the one before."""
    return (*conversation.system(), *_exchanges(conversation, range(conversation.answered)))


def reasoning(conversation: Conversation) -> tuple[Message, ...]:
    """All that was asked and said, but for the thoughts of earlier answers."""
    return tuple(
        _thoughtless(message) if message.role == "assistant" else message
        for message in causal(conversation)
    )


def window(conversation: Conversation, n: int | None) -> tuple[Message, ...]:
    """The last ``n`` steps; of older ones the task and a list of what was done.

    In the original a model writes the memory when a length is exceeded; here it is the list of
    actions, so that a prompt costs no second request and stays a function of the view.

    Args:
        conversation: the episode.
        n: past steps that are shown as they were, from 0; None for as many as have
            :data:`WINDOW_CHARS` characters together.
    """
    oldest = conversation.answered - (_that_fit(conversation) if n is None else n)
    if oldest <= 0:
        return causal(conversation)
    kept = list(_exchanges(conversation, range(oldest, conversation.answered)))
    remembered = [conversation.asked(0), _memory(conversation, oldest), conversation.asked(oldest)]
    instruction = conversation.view.instruction
    if not any(instruction in text for text in (remembered[0], *(m.content for m in kept))):
        remembered.insert(1, f"What is asked for now: {instruction}")
    kept[0] = conversation.user(0, "\n\n".join(remembered))
    return (*conversation.system(oldest - 1), *kept)


def recent(conversation: Conversation, n: int | None) -> tuple[Message, ...]:
    """The last ``n`` steps, and nothing of older ones: neither the task nor what was done.

    It suits exploration, where nothing is asked for. Whatever else must not be forgotten belongs
    into the system message.

    Args:
        conversation: the episode.
        n: past steps that are shown as they were, from 0; None for as many as fit into 24,000
            characters.
    """
    oldest = conversation.answered - (_that_fit(conversation) if n is None else n)
    if oldest <= 0:
        return causal(conversation)
    kept = list(_exchanges(conversation, range(oldest, conversation.answered)))
    kept[0] = conversation.user(0, conversation.asked(oldest))  # with the cues of a first message
    return (*conversation.system(oldest - 1), *kept)


def _that_fit(conversation: Conversation) -> int:
    """How many past steps, from the last one back, fit into a window."""
    left = WINDOW_CHARS
    for n, step in enumerate(reversed(range(conversation.answered))):
        left -= len(conversation.asked(step)) + len(conversation.said(step).content)
        if left < 0:
            return n
    return conversation.answered


def self_managed(conversation: Conversation, max_chars: int) -> tuple[Message, ...]:
    """All steps but for those that the model itself has dropped or put into a note.

    Steps are numbered from 1. A prompt of over ``max_chars`` characters says so, and how to make
    room: ``<drop>2-4,6</drop>`` anywhere in an answer leaves steps out of later prompts, and
    ``<note n="2-4">…</note>`` puts a note in their place. Step 1, which holds the task, stays.
    Marks in thoughts do not count; a mark that cannot be read, or names no step there was, changes
    nothing.

    In the original a request of its own has the model mark every message to keep, to remove or to
    compress; here the marks are part of an ordinary answer, and what is not marked is kept.

    Args:
        conversation: the episode.
        max_chars: length from which on the model is asked to make room.
    """
    desk = _Desk()
    system = conversation.system()
    length = sum(len(message.content) for message in system)
    for step in range(conversation.answered + 1):
        number = step + 1
        text = f"[{number}] {conversation.asked(step)}"
        told = conversation.user(step, text).content
        size = length + len(told) + desk.size
        if size > max_chars:
            text += "\n\n" + _make_room(size, max_chars)
            told = conversation.user(step, text).content
        desk.users[number] = told
        if step < conversation.answered:
            desk.answers[number] = conversation.said(step)
            desk.mark(desk.answers[number].content)
    return (*system, *desk.messages())


def without_marks(answer: str) -> str:
    """An answer without the marks of a self-managed context."""
    return _NOTE.sub("", _DROP.sub("", answer)).strip()


class _Desk:
    """The steps that lie before a model, by number, while its own marks clear them away."""

    def __init__(self) -> None:
        self.users: dict[int, str] = {}
        self.answers: dict[int, Message] = {}
        self.notes: dict[int, str] = {}  # by the number of the last step that they stand for

    @property
    def size(self) -> int:
        """Characters of all that is kept."""
        answers = (answer.content for answer in self.answers.values())
        return sum(map(len, (*self.users.values(), *answers, *self.notes.values())))

    def mark(self, answer: str) -> None:
        """Do what the marks in an answer say, drops before notes."""
        said = without_thoughts(answer)
        for match in _DROP.finditer(said):
            self._clear(match[1])
        for match in _NOTE.finditer(said):
            numbers = self._clear(match[1])
            if numbers:
                listed = match[1].strip()
                self.notes[max(numbers)] = f"[{listed}] Your note: {match[2].strip()}"

    def messages(self) -> Iterable[Message]:
        """What is kept, in order; a note is put before the next step that is kept."""
        waiting = dict(self.notes)
        for number, text in self.users.items():
            before = [waiting.pop(n) for n in sorted(waiting) if n < number]
            yield Message("user", "\n".join([*before, text]))
            if number in self.answers:
                yield self.answers[number]

    def _clear(self, numbers: str) -> set[int]:
        """Take away the steps and notes that these numbers name; returns those there were."""
        named = _numbers(numbers) & {*self.users, *self.notes} - {1}
        for number in named:
            for pile in (self.users, self.answers, self.notes):
                pile.pop(number, None)
        return named


def _numbers(text: str) -> set[int]:
    """The numbers in a list such as ``2-4,6``; none if it is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return set()
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _make_room(size: int, max_chars: int) -> str:
    return (
        f"(This conversation has {size:,} characters; from {max_chars:,} on, make room, or it will "
        "not fit. Beside your action you may write <drop>2-4,6</drop> to have the messages with "
        'these numbers left out from now on, or <note n="2-4">what matters in them</note> to have '
        "a note in their place. What you do not mention stays; 1 always does.)"
    )


def _exchanges(conversation: Conversation, steps: Iterable[int]) -> Iterable[Message]:
    """What was asked and said in past steps, and what is asked now."""
    for step in steps:
        yield conversation.user(step, conversation.asked(step))
        yield conversation.said(step)
    yield conversation.user(conversation.answered, conversation.asked(conversation.answered))


def _thoughtless(answer: Message) -> Message:
    text = without_thoughts(answer.content)
    return answer if text == answer.content.strip() else Message("assistant", text)


def _memory(conversation: Conversation, n: int) -> str:
    """What was done in the first ``n`` steps, one line each."""
    lines = ["What you have done since then; what it led to is left out:"]
    for number, turn in enumerate(conversation.view.history[:n], start=1):
        action = " ".join(turn.action.split())
        cut = action if len(action) <= MAX_RECALLED else f"{action[:MAX_RECALLED]}…"
        lines.append(f"{number}. {cut}")
    return "\n".join([*lines, "This is what came of the last of them:"])
