"""Kinds of history: functions that select the part of an episode that a chat model sees.

Each kind is a pure function of the view, so agents keep no state: the view's history contains
earlier answers with their token ids, and the model's notes on earlier steps. An unchanged answer
keeps its token ids, so a prompt that extends the previous one shares a training segment with it. A
changed answer has no ids. It becomes ordinary prompt text and is not trained on again.

The kinds follow AgentEvolver (Zhai et al., arXiv 2511.10395): all messages, all messages without
thoughts, a sliding window, a history that the model manages itself, and only the recent steps, as
in its exploration. Each docstring describes differences from the original.

All kinds include the cues: in the system message (added if it is missing), before the first user
message, or after every user message. Cues stay the same throughout an episode, so they
do not stop a prompt from extending the previous one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from coevo_gym.core.notations import NOTATIONS, read_action_calls
from coevo_gym.core.seams import Message
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.thoughts import without_thoughts
from coevo_gym.core.tool_calls import split_results
from coevo_gym.core.trajectory import CuePlace, View
from coevo_gym.prompts import AnswerStyle, PromptTemplate
from coevo_gym.prompts.answers import answer_of
from coevo_gym.prompts.template import load_cue

MAX_RECALLED = 160
"""Maximum characters of an action in a memory message."""
WINDOW_CHARS = 24_000
"""Maximum characters of past steps in a window without a fixed number of steps."""
MEMORY_PROMPTS = {"window": "chat/notes", "self_managed": "chat/room"}
"""Prompts that ask the model for notes on older steps, or to shorten the history, by kind."""
_STEP_CHARS = 2_000
"""Maximum characters of each observation and each action in a request for notes."""

_DROP = re.compile(r"<drop>([0-9,\- ]{1,200})</drop>")
_NOTE = re.compile(r'<note n="([0-9,\- ]{1,200})">(.{1,2000}?)</note>', re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


@dataclass(frozen=True)
class Conversation:
    """An episode as a chat: a user message and an answer per step. The last step has no answer.

    ``memory`` holds the notes on earlier steps that the model has written for the unanswered step;
    notes for answered steps are in the view.
    """

    view: View
    prompt: PromptTemplate
    thinking: bool = False
    style: AnswerStyle = "plain"
    memory: str = ""

    @property
    def n_answered(self) -> int:
        """Number of steps that the agent has answered (equal to the index of the current step)."""
        return len(self.view.history)

    def system_messages(self, step: int = 0) -> tuple[Message, ...]:
        """Return the system message at a step, or () if there is neither system text nor a cue."""
        text = self.prompt.system_text(
            self._view_at(step), thinking=self.thinking, style=self.style
        )
        return (Message("system", text),) if text else ()

    def user_text(self, step: int) -> str:
        """Return the text of a step's user message, excluding cues."""
        write = self.prompt.turn_text if step else self.prompt.first_text
        return write(self._view_at(step), thinking=self.thinking, style=self.style)

    def user_message(self, step: int, text: str) -> Message:
        """Return a user message with the given text and the cues for its step."""
        before = self._cues("first") if step == 0 else ()
        return Message("user", "\n\n".join([*before, text, *self._cues("turn")]))

    def new_messages_at(self, step: int) -> tuple[Message, ...]:
        """Return the messages that a step's answer replies to: a user message or tool results."""
        text = self.user_text(step)
        n = 0
        if step and self._has_tool_messages:
            n = len(read_action_calls(self.view.history[step - 1].action))
        if not n:
            return (self.user_message(step, text),)
        results, rest = split_results(text, n)
        messages = tuple(Message("tool", result) for result in results)
        if rest:
            return (*messages, self.user_message(step, rest))
        last = "\n\n".join([messages[-1].content, *self._cues("turn")])
        return (*messages[:-1], Message("tool", last))

    def answer_at(self, step: int) -> Message:
        """Return the answer that was originally sampled at a past step."""
        turn = self.view.history[step]
        ids = turn.decision.ids if turn.decision is not None else ()
        notation, tools = (self.style, self._tools) if self._has_tool_messages else ("", "[]")
        text = turn.said or answer_of(turn.action, self.prompt.header.answer, notation, tools)
        return Message("assistant", text, ids)

    def notes_at(self, step: int) -> str:
        """Return the notes that the model wrote at a step, or "" if there are none."""
        return self.memory if step == self.n_answered else self.view.history[step].memory

    def before_answer(self, step: int) -> Conversation:
        """Return the conversation as it was just before the model's answer at a step."""
        return replace(self, view=self._view_at(step), memory=self.notes_at(step))

    @property
    def _has_tool_messages(self) -> bool:
        """True if tool calls and their results are separate messages."""
        return self.style in NOTATIONS

    @property
    def _tools(self) -> str:
        """The tools at the start of the episode, as JSON text like a request's ``tools``."""
        return str(self._view_at(0).info.get(self.prompt.header.tools, "[]"))

    def _cues(self, place: CuePlace) -> tuple[str, ...]:
        return tuple(cue.text for cue in self.view.cues if cue.place == place)

    def _view_at(self, step: int) -> View:
        """Return the view that the agent had at a step."""
        if step == self.n_answered:
            return self.view
        turn, history = self.view.history[step], self.view.history[:step]
        return replace(self.view, observation=turn.observation, info=turn.info, history=history)


def causal_messages(conversation: Conversation) -> tuple[Message, ...]:
    """Show all messages and answers, so that each prompt extends the previous prompt."""
    return (*conversation.system_messages(), *_messages_since_step(conversation, 0))


def reasoning_messages(conversation: Conversation) -> tuple[Message, ...]:
    """Show all messages and answers, but omit the thoughts in earlier answers."""
    return tuple(
        _drop_thoughts(message) if message.role == "assistant" else message
        for message in causal_messages(conversation)
    )


def window_messages(conversation: Conversation, n: int | None) -> tuple[Message, ...]:
    """Show the last ``n`` steps in full, preceded by the task and a list of older actions.

    Notes that the model has written about older steps replace those steps' actions in the list. In
    the original, a model writes such notes once a length is exceeded; see :func:`notes_request`.
    If ``n`` is None, as many steps are shown as fit into :data:`WINDOW_CHARS` characters.
    """
    oldest = _window_start(conversation, n)
    if not oldest:
        return causal_messages(conversation)
    messages = list(_messages_since_step(conversation, oldest))
    memory = _earlier_steps_summary(conversation, n, oldest)
    remembered = [conversation.user_text(0), memory, conversation.user_text(oldest)]
    instruction = conversation.view.instruction
    if not any(instruction in text for text in (remembered[0], *(m.content for m in messages))):
        remembered.insert(1, f"What is asked for now: {instruction}")
    messages[0] = conversation.user_message(0, "\n\n".join(remembered))
    return (*conversation.system_messages(oldest - 1), *messages)


def recent_messages(conversation: Conversation, n: int | None) -> tuple[Message, ...]:
    """Show only the last ``n`` steps, without the task or earlier actions.

    This kind suits exploration without a task. Put lasting information into the system message.
    If ``n`` is None, as many steps are shown as fit into :data:`WINDOW_CHARS` characters.
    """
    oldest = _window_start(conversation, n)
    if not oldest:
        return causal_messages(conversation)
    messages = list(_messages_since_step(conversation, oldest))
    messages[0] = conversation.user_message(
        0, conversation.user_text(oldest)
    )  # with the cues of a first message
    return (*conversation.system_messages(oldest - 1), *messages)


def single_message(conversation: Conversation, n: int | None) -> tuple[Message, ...]:
    """Show a single message, rendered from a prompt file that lists the last ``n`` steps.

    The message does not contain earlier answers, only their actions. If ``n`` is None, as many
    steps are shown as fit into :data:`WINDOW_CHARS` characters of observations and actions.
    """
    view, left = conversation.view, WINDOW_CHARS
    if n is None:
        n = 0
        for step in reversed(view.history):
            left -= len(step.observation) + len(step.action)
            if left < 0:
                break
            n += 1
    text = conversation.prompt.single_text(
        view, n, thinking=conversation.thinking, style=conversation.style
    )
    return (*conversation.system_messages(), conversation.user_message(0, text))


def notes_request(conversation: Conversation, n: int | None) -> str:
    """Return text that asks for notes on steps outside the window, or "" if none are due.

    New notes are due once the window has moved by its length since the latest notes, which they
    replace. The request shows the latest notes and the steps since then, without cues.

    Args:
        conversation: the episode.
        n: past steps that the window shows in full; see :func:`window_messages`.
    """
    oldest = _window_start(conversation, n)
    known, covered = _latest_notes(conversation, n)
    if oldest - covered < max(1, conversation.n_answered - oldest):
        return ""
    history = conversation.view.history
    steps = [
        {
            "number": step + 1,
            "observation": clean_text(history[step].observation, _STEP_CHARS),
            "action": clean_text(history[step].action, _STEP_CHARS),
        }
        for step in range(covered, oldest)
    ]
    return _load_cached_cue(MEMORY_PROMPTS["window"]).render_cue(
        {
            "instruction": conversation.view.instruction,
            "notes": known,
            "covered": covered,
            "steps": steps,
        }
    )


def _window_start(conversation: Conversation, n: int | None) -> int:
    """Return the index of the oldest step that a window shows in full."""
    if n is not None:
        return max(0, conversation.n_answered - n)
    left = WINDOW_CHARS
    for step in reversed(range(conversation.n_answered)):
        left -= len(conversation.user_text(step)) + len(conversation.answer_at(step).content)
        if left < 0:
            return step + 1
    return 0


def _latest_notes(conversation: Conversation, n: int | None) -> tuple[str, int]:
    """Return the model's latest notes and the number of steps that they cover."""
    for step in reversed(range(conversation.n_answered + 1)):
        if text := conversation.notes_at(step):
            return text, _window_start(conversation.before_answer(step), n)
    return "", 0


def self_managed_messages(
    conversation: Conversation, max_chars: int, *, by_model: bool = False
) -> tuple[Message, ...]:
    """Show all steps except those that the model has dropped or replaced with a note.

    Steps are numbered from 1. A prompt of more than ``max_chars`` characters explains to the model
    how to make room: ``<drop>2-4,6</drop>`` anywhere in an answer removes steps from later prompts,
    and ``<note n="2-4">…</note>`` replaces them with a note. Step 1, with the task, stays.
    Marks in thoughts, unreadable marks and unknown step numbers are ignored.

    In the original, a separate request makes the model mark each message as keep, remove or
    compress. Here the marks are part of an ordinary answer, or with ``by_model`` of the answer to
    a separate request (:func:`shortening_request`), and unmarked steps are kept.
    """
    prompt = _build_managed_prompt(conversation, max_chars, by_model=by_model)
    return (*prompt.system, *prompt.steps.messages())


def shortening_request(conversation: Conversation, max_chars: int) -> str:
    """Return text that asks the model to drop or summarise steps, or "" if the prompt is short.

    The request does not include cues.
    """
    size = _build_managed_prompt(conversation, max_chars, by_model=True).size
    if size <= max_chars or not conversation.n_answered:
        return ""
    bare = replace(conversation, view=replace(conversation.view, cues=()))
    steps = _build_managed_prompt(bare, max_chars, by_model=True).steps
    return _load_cached_cue(MEMORY_PROMPTS["self_managed"]).render_cue(
        {
            "size": f"{size:,}",
            "limit": f"{max_chars:,}",
            "messages": [
                {"role": message.role, "text": without_thoughts(message.content)}
                for message in steps.messages()
            ],
        }
    )


class _ManagedPrompt(NamedTuple):
    """A prompt from which the model may remove steps.

    Attributes:
        system: the system message; () if there is none.
        steps: the kept steps.
        size: number of characters in both, without instructions for making room.
    """

    system: tuple[Message, ...]
    steps: _NumberedSteps
    size: int


def _build_managed_prompt(
    conversation: Conversation, max_chars: int, *, by_model: bool
) -> _ManagedPrompt:
    """Build the prompt of :func:`self_managed_messages`, applying the model's marks in order."""
    numbered = _NumberedSteps()
    system = conversation.system_messages()
    length = sum(len(message.content) for message in system)
    for step in range(conversation.n_answered + 1):
        number = step + 1
        numbered.apply_marks(conversation.notes_at(step))
        text = f"[{number}] {conversation.user_text(step)}"
        content = conversation.user_message(step, text).content
        size = length + len(content) + numbered.size
        if size > max_chars and not by_model:
            text += "\n\n" + _shortening_instructions(size, max_chars)
            content = conversation.user_message(step, text).content
        numbered.users[number] = content
        if step < conversation.n_answered:
            numbered.answers[number] = conversation.answer_at(step)
            if not by_model:
                numbered.apply_marks(numbered.answers[number].content)
    return _ManagedPrompt(system, numbered, size)


def without_marks(answer: str) -> str:
    """Strip the model's history commands from an answer."""
    return _NOTE.sub("", _DROP.sub("", answer)).strip()


class _NumberedSteps:
    """The numbered steps in a model's context. Commands in the model's answers edit them."""

    def __init__(self) -> None:
        self.users: dict[int, str] = {}
        self.answers: dict[int, Message] = {}
        self.notes: dict[int, str] = {}  # notes by the number of the last step that they replace

    @property
    def size(self) -> int:
        """Total number of characters in all kept steps and notes."""
        answers = (answer.content for answer in self.answers.values())
        return sum(map(len, (*self.users.values(), *answers, *self.notes.values())))

    def apply_marks(self, answer: str) -> None:
        """Apply an answer's history commands: drop steps, then replace steps with notes."""
        text = without_thoughts(answer)
        for match in _DROP.finditer(text):
            self._remove_steps(match[1])
        for match in _NOTE.finditer(text):
            numbers = self._remove_steps(match[1])
            if numbers:
                steps = match[1].strip()
                self.notes[max(numbers)] = f"[{steps}] Your note: {match[2].strip()}"

    def messages(self) -> Iterable[Message]:
        """Return the kept messages, with notes in place of the steps that they summarise."""
        waiting = dict(self.notes)
        for number, text in self.users.items():
            before = [waiting.pop(n) for n in sorted(waiting) if n < number]
            yield Message("user", "\n".join([*before, text]))
            if number in self.answers:
                yield self.answers[number]

    def _remove_steps(self, numbers: str) -> set[int]:
        """Remove the steps and notes with the given numbers; return the numbers found."""
        steps = _parse_numbers(numbers) & {*self.users, *self.notes} - {1}
        for number in steps:
            for pile in (self.users, self.answers, self.notes):
                pile.pop(number, None)
        return steps


def _parse_numbers(text: str) -> set[int]:
    """Parse a list of numbers such as ``2-4,6``; return an empty set for other text."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return set()
        numbers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def _shortening_instructions(size: int, max_chars: int) -> str:
    return (
        f"(This conversation has {size:,} characters; from {max_chars:,} on, make room, or it will "
        "not fit. Beside your action you may write <drop>2-4,6</drop> to have the messages with "
        'these numbers left out from now on, or <note n="2-4">what matters in them</note> to have '
        "a note in their place. What you do not mention stays; 1 always does.)"
    )


def _messages_since_step(conversation: Conversation, oldest: int) -> Iterable[Message]:
    """Yield all messages from step ``oldest`` on, including those that are not yet answered."""
    for step in range(oldest, conversation.n_answered):
        yield from conversation.new_messages_at(step)
        yield conversation.answer_at(step)
    yield from conversation.new_messages_at(conversation.n_answered)


def _drop_thoughts(answer: Message) -> Message:
    text = without_thoughts(answer.content)
    return answer if text == answer.content.strip() else Message("assistant", text)


def _earlier_steps_summary(conversation: Conversation, n: int | None, oldest: int) -> str:
    """Summarise the steps before a window that begins at step ``oldest``.

    The summary contains the model's notes, and the actions of the steps after them, one per line.
    """
    notes, covered = _latest_notes(conversation, n)
    lines = [f"Your notes on steps 1 to {covered}:", notes, ""] if notes else []
    if covered < oldest:
        lines.append("What you have done since then; what it led to is left out:")
    for number, turn in enumerate(conversation.view.history[covered:oldest], start=covered + 1):
        action = " ".join(turn.action.split())
        cut = action if len(action) <= MAX_RECALLED else f"{action[:MAX_RECALLED]}…"
        lines.append(f"{number}. {cut}")
    return "\n".join([*lines, "This is what came of the last of them:"])


_load_cached_cue = lru_cache(maxsize=None)(load_cue)
