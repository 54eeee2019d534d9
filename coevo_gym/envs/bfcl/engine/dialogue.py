"""A conversation: the user's messages, the available functions and the results of calls.

A dialogue does not know the reference. When a turn ends, the dialogue waits, so that the judge
(``judge.py``) can inspect the backends and the agent's calls before the user continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from coevo_gym.core.errors import TaskError
from coevo_gym.core.tool_calls import Call, Malformed, write_result
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.engine.toolbox import ERROR, Toolbox, is_error
from coevo_gym.envs.bfcl.engine.tools import functions_of, schemas_text
from coevo_gym.envs.bfcl.engine.wheel import import_official
from coevo_gym.envs.bfcl.world import BFCLWorld

MAX_CALLS = 100
"""Maximum number of calls run per message; further calls are answered with an error."""
RESULT_CAP = 32_000
"""Maximum number of characters shown per result; the judge always reads the whole result."""
END = "(The conversation is over.)"


class DialogueReply(NamedTuple):
    """The reply to an agent's message in the dialogue.

    Attributes:
        observation: the results, or the user's next message.
        calls: functions that ran.
        error_kind: kind of the first error: ``parse``, ``unknown_function``, ``too_many_calls`` or
            ``call`` (a call that returned an error); or "".
        reason: description of the error.
        results: the shown result of each call.
    """

    observation: str
    calls: tuple[str, ...] = ()
    error_kind: str = ""
    reason: str = ""
    results: tuple[str, ...] = ()


@dataclass(slots=True)
class TurnCalls:
    """The agent's calls in one turn.

    Attributes:
        calls: the agent's calls, in order.
        results: result of each call; None for a call that was not run.
        malformed: True if a part of a message could not be parsed as a call.
        steps: number of messages with calls.
    """

    calls: list[Call] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    malformed: bool = False
    steps: int = 0


class Dialogue:
    """The conversation in one episode, turn by turn.

    A message with calls is answered with the results; a message without calls ends the turn. After
    that, call :meth:`begin_next_turn` or :meth:`end_conversation`, unless the conversation is over.
    If ``lenient``, a message that cannot be parsed is answered with an error; the official protocol
    ends the turn.

    Attributes:
        toolbox: the agent's backends.
        turn: index of the current turn, from 0.
        request: the user's last message.
        offered: names of the functions that may be called now.
        ended: the agent's calls in the turn that the latest message ended, for the judge; None if
            no turn ended, or if the turn is not judged.
        over: True if the conversation is over.
        cut: True if a turn took more steps than the protocol allows, which ends the episode.

    Raises:
        TaskError: if a backend cannot be set up with its initial state, the setup contains anything
            other than calls, or a held-out function does not exist in the backends.
    """

    def __init__(self, world: BFCLWorld, *, lenient: bool = False) -> None:
        self._world = world
        self.toolbox = Toolbox(world)
        self._lenient = lenient
        self._outputs: list[str] = []
        self.ended: TurnCalls | None = None
        held_out = {name for _, names in world.held_out for name in names}
        known = functions_of(world.classes)
        if unknown := held_out - known.keys():
            raise TaskError(
                f"held_out contains {min(unknown)!r}, which is not a function of "
                f"{', '.join(world.classes)}"
            )
        self.offered = tuple(name for name in known if name not in held_out)
        self.turn, self.over, self.cut = 0, False, False
        self.request = self._open_turn()

    @property
    def tools(self) -> str:
        """OpenAI-style schemas of the available functions, as JSON text."""
        return schemas_text(self.offered)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The raw results of all calls so far."""
        return tuple(self._outputs)

    @property
    def n_turns(self) -> int:
        """The number of turns in the whole conversation."""
        return len(self._world.turns)

    @property
    def is_between_turns(self) -> bool:
        """Return True if a turn has ended and the user has another message to send."""
        return self.ended is not None and not self.over

    def begin_next_turn(self) -> str:
        """Begin the next turn and return the user's message."""
        self.turn += 1
        self.request = self._open_turn()
        return self.request

    def end_conversation(self) -> str:
        """End the conversation and return the closing text."""
        self.over = True
        return END

    def send(self, message: str) -> DialogueReply:
        """Process the agent's next message."""
        self.ended = None
        items = parse_message(message)
        bad = [item for item in items if isinstance(item, Malformed)]
        self._attempt.malformed |= bool(bad)
        if not self._lenient:
            spoiled = any(item.spoils_message for item in bad)
            items = () if spoiled else tuple(item for item in items if isinstance(item, Call))
        if items:
            return self._run_calls(items)
        reason = bad[0].reason if bad else ""
        return DialogueReply(self._end_turn(), error_kind="parse" if bad else "", reason=reason)

    def _run_calls(self, items: Sequence[Call | Malformed]) -> DialogueReply:
        """Run the calls in a message and show the result of each call."""
        texts, ran, kind, reason = [], [], "", ""
        for number, item in enumerate(items):
            problem, text = self._run_call(item, number)
            if problem in ("", "call"):
                ran.append(item.name if isinstance(item, Call) else "")
            if problem and not kind:
                kind, reason = problem, text
            texts.append(_clip(text))
        self._attempt.steps += 1
        lines = [*map(write_result, texts)]
        if self._attempt.steps > max_steps_per_turn():
            self.cut = True
            lines.append(self._end_turn(cut=True))
        return DialogueReply("\n".join(lines), tuple(ran), kind, reason, tuple(texts))

    def _run_call(self, item: Call | Malformed, number: int) -> tuple[str, str]:
        """Run one call and return the kind of error ("" if none) and the result."""
        if isinstance(item, Malformed):
            return "parse", f"{ERROR}{item.reason}"
        result: str | None = None
        if number >= MAX_CALLS:
            kind = "too_many_calls"
            text = f"{ERROR}only the first {MAX_CALLS} calls of a message are run."
        elif item.name not in self.offered and item.name not in self._world.unlisted:
            kind = "unknown_function"
            text = (
                f"{ERROR}there is no function {item.name[:80]!r}. "
                f"Call one of: {', '.join(self.offered)}."
            )
        else:
            text = result = self.toolbox.call(item)
            kind = "call" if is_error(text) else ""
        self._attempt.calls.append(item)
        self._attempt.results.append(result)
        self._outputs.append(text)
        return kind, text

    def _end_turn(self, *, cut: bool = False) -> str:
        """End the turn and store its calls for the judge. After the last turn, end the dialogue."""
        last = self.turn + 1 == self.n_turns
        if last or not cut:  # the official runner fails a conversation that is cut off earlier
            self.ended = self._attempt
        return self.end_conversation() if last or cut else ""

    def _open_turn(self) -> str:
        """Begin a turn: add its new functions and return the user's message."""
        self._attempt = TurnCalls()
        for turn, names in self._world.held_out:
            if turn == self.turn:
                self.offered += names
        return self._world.turns[self.turn] or new_functions_message()


def _clip(text: str) -> str:
    if len(text) <= RESULT_CAP:
        return text
    return f"{text[:RESULT_CAP]}… ({RESULT_CAP:,} of {len(text):,} characters shown)"


@lru_cache(maxsize=1)
def new_functions_message() -> str:
    """Return the official user message that announces new functions."""
    prompts = import_official("constants.default_prompts")
    return str(prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


@lru_cache(maxsize=1)
def max_steps_per_turn() -> int:
    """Return the limit on tool-calling messages per turn. Exceeding it ends the episode."""
    return int(import_official("constants.default_prompts").MAXIMUM_STEP_LIMIT)
