"""Functions that convert messages to token ids and back, and keep the ids of earlier answers.

A tokenizer's chat template renders a conversation as one text. Tokenising this text again at every
turn would change sampled tokens, and templates render old and new messages differently. This
module splits the template into pieces instead, once per sequence of roles: the text before the
first answer, and the text between two answers. A prompt consists of these pieces, the contents
between them, and the unchanged sampled ids.
"""

from __future__ import annotations

import ctypes
import json
import logging
import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from functools import lru_cache, partial
from threading import Lock, Thread
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jinja2 import TemplateError

from coevo_gym.core.errors import ModelError
from coevo_gym.core.seams import Message
from coevo_gym.core.thoughts import THOUGHT_CLOSES, THOUGHT_OPENS, thought_opening
from coevo_gym.core.trajectory import TokenDecision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

TODAY = datetime(2026, 1, 1, tzinfo=UTC)
"""Current date of all chat templates that print it, so that no prompt depends on the clock."""

T = TypeVar("T")

_ENTRY_BYTES = 200  # approximate size of a dict entry


class TokenCache:
    """A tokenizer with a cache that keeps the ids of the most recently used strings.

    Threads may share a cache. Ids are below 2**31. A text that would take more than ``max_bytes``
    with its ids is not cached.

    Attributes:
        n_bytes: memory in use.

    Example:
        >>> ids_of = TokenCache(lambda text: [ord(letter) for letter in text], max_bytes=10_000)
        >>> list(ids_of("ab"))
        [97, 98]
    """

    def __init__(self, tokenise: Callable[[str], Sequence[int]], max_bytes: int) -> None:
        self._tokenise, self._max_bytes = tokenise, max_bytes
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()
        self.n_bytes = 0

    def __call__(self, text: str) -> array[int]:
        """Return the token ids of a string."""
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        ids = array("i", self._tokenise(text))
        with self._lock:
            if text not in self._known and _entry_bytes(text, ids) <= self._max_bytes:
                self._known[text] = ids
                self.n_bytes += _entry_bytes(text, ids)
            while self.n_bytes > self._max_bytes:
                self.n_bytes -= _entry_bytes(*self._known.popitem(last=False))
        return ids


def _entry_bytes(text: str, ids: array[int]) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + _ENTRY_BYTES


_ASSISTANT = "assistant"
_ANSWER = "CoevoAnswerSlot"
_SLOT = re.compile(r"CoevoSlot(\d+)End")
_PROBE = "You are in a room. What next?"
_LEFT, _RIGHT = "\n\t", "\t\n"  # around a slot's name, to detect templates that trim contents
_QUOTED_LEFT, _QUOTED_RIGHT = r"\n\t", r"\t\n"  # in a template that writes contents as JSON
_MAX_REMEMBERED = 4096  # sequences of roles
_LIMIT_S = 10.0
"""Maximum seconds to render a template. A template that ends takes milliseconds."""
_MAX_BYTES = 2**28
"""Cache size for tokenised texts: 256 episodes of 30 steps with two texts of 17 kB each."""


class _Slot(NamedTuple):
    """Position of a message's content in a template. It may be written as a JSON string."""

    place: int
    trim_left: bool
    trim_right: bool
    quoted: bool = False

    def format_content(self, content: str) -> str:
        content = content.lstrip() if self.trim_left else content
        content = content.rstrip() if self.trim_right else content
        return json.dumps(content, ensure_ascii=False)[1:-1] if self.quoted else content


_Piece = str | int | _Slot
"""A part of a template: plain text, a special token's id, or a slot."""


class ChatFormat:
    """A model's chat format.

    Prefix property: the prompt of a continued conversation starts with the previous prompt and the
    sampled ids, regardless of the template's treatment of old messages.

    Contents are plain text: the name of a special token in a content is tokenised as ordinary
    characters, and cannot end or begin a message. ``thinking`` is the value of the switch
    ``enable_thinking`` in templates that have it, such as Qwen3's; None for the template's default.
    A template that prints the current date prints :data:`TODAY`.

    An answer without sampled ids follows the text that the template writes before an earlier
    answer. If this differs from the end of a prompt, for example because a prompt ends by opening a
    thought or lacks the header of a channel, a demonstration begins with the missing text.

    ``end_ids`` are further tokens that end an answer, from the model's generation config.

    Attributes:
        end_of_turn: id of the token that ends an answer.
        opened: text at the end of each prompt that opens a thought, or "".

    Raises:
        ModelError: if the tokenizer has no template, the template cannot be split, or the ids of a
            prompt differ from the tokenizer's own.

    Example:
        >>> format = ChatFormat(tokenizer)                                   # doctest: +SKIP
        >>> prompt = format.prompt_ids([Message("user", "Hello!")])          # doctest: +SKIP
        >>> format.decode(sampled)                                           # doctest: +SKIP
        'Hello! How can I help?'
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        thinking: bool | None = None,
        end_ids: Sequence[int] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "The model's tokenizer has no chat template. Choose a chat-tuned model, or add a "
                "chat_template.jinja file to the model's folder."
            )
        self.tokenizer = tokenizer
        self._switches: dict[str, Any] = {"strftime_now": self._format_today}
        if thinking is not None:
            self._switches["enable_thinking"] = thinking
        self._prints_date = False
        self._end_ids = tuple(end_ids)
        self._special = {
            str(token): index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._dropped_ids = frozenset((*self._special.values(), *end_ids))
        self._names = {index: token for token, index in self._special.items()}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._encode = TokenCache(self._tokenise, _MAX_BYTES)
        self._head = lru_cache(_MAX_REMEMBERED)(self._pieces_before_first_answer)
        self._bridge = lru_cache(_MAX_REMEMBERED)(self._pieces_between_answers)
        self._check_generation_prompt()
        self.end_of_turn = self._find_end_of_turn()
        prompt = self._render(["user"])
        self.opened = thought_opening(prompt)
        self._prompt_end = self._split_into_pieces(prompt, 1)
        self._lead, self._rewrites = self._find_answer_prefix(prompt)
        self._check_prompt_ids()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of tokens that stop sampling: end of turn, end of text and model-specific end tokens.

        If each message of an answer begins with the header of a channel, the end-of-turn token only
        ends a message, such as a thought, so it stops sampling only if it is one of the others.
        """
        eos = self.tokenizer.eos_token_id
        others = self._end_ids if eos is None else (eos, *self._end_ids)
        has_header = any(isinstance(piece, int) for piece in self._lead)
        first = () if has_header and others else (self.end_of_turn,)
        return tuple(dict.fromkeys((*first, *others)))

    def prompt_ids(self, messages: Sequence[Message], tools: str = "") -> tuple[int, ...]:
        """Return the prompt ids for the next answer.

        ``tools`` are JSON text; the template describes them. An assistant message with ``ids`` is
        inserted as these ids, with an end of turn if it was truncated; its ``content`` is ignored.

        Raises:
            ModelError: if the template rejects this sequence of roles.
        """
        ids: list[int] = []
        asked: list[Message] = []
        answered = False
        for message in [*messages, None]:
            if message is not None and message.role != _ASSISTANT:
                asked.append(message)
                continue
            roles = tuple(other.role for other in asked)
            as_text = message is not None and not message.ids
            parts = self._bridge if answered else self._head
            pieces = parts(roles, as_text, tools)
            if message is None:
                ids += self._encode_pieces(pieces, asked)
            elif as_text:
                ids += self._encode_pieces(
                    (*pieces, self._with_opened_thought(message.content)), asked
                )
            else:
                ids += (
                    *self._encode_pieces(pieces, asked),
                    *self._without_end_of_turn(message.ids),
                )
            asked, answered = [], True
        return tuple(ids)

    def prompt_ids_after(
        self, decision: TokenDecision, messages: Sequence[Message], tools: str = ""
    ) -> tuple[int, ...]:
        """Return the token ids of a decision's prompt and answer and of the messages that follow.

        The ids start with the decision's ids, which are not tokenised again.

        Raises:
            ModelError: if the template rejects this sequence of roles.
        """
        bridge = self._bridge(tuple(message.role for message in messages), False, tools)
        answer = self._without_end_of_turn(decision.ids)
        return (*decision.prompt_ids, *answer, *self._encode_pieces(bridge, messages))

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """Encode an answer that was not sampled, as the continuation of a prompt.

        The ids begin with the text that the template writes between the end of a prompt and an
        answer, and end with the token that stops sampling.
        """
        probe = (Message("user", _PROBE),)
        before = tuple(self._encode_pieces(self._prompt_end, probe))
        both = tuple(self._encode_pieces((*self._prompt_end, *self._lead, text), probe))
        # A merge across the border would change the prompt, so the two are then encoded separately.
        joins = both[: len(before)] == before
        ids = both[len(before) :] if joins else tuple(self._encode_pieces((*self._lead, text), ()))
        return (*ids, self.stop_ids[0])

    def decode(self, ids: Sequence[int]) -> str:
        """Decode sampled ids to text, dropping special and end tokens at the end."""
        end = len(ids)
        while end and ids[end - 1] in self._dropped_ids:
            end -= 1
        text = self.tokenizer.decode(
            list(ids[:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _with_opened_thought(self, answer: str) -> str:
        """Restore an answer's opening thought tag if the prompt already contained it."""
        thought, closed, _ = answer.partition(THOUGHT_CLOSES)
        return self.opened + answer if closed and THOUGHT_OPENS not in thought else answer

    def _without_end_of_turn(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Drop an answer's end-of-turn token, because the next piece contains it."""
        return ids[:-1] if ids[-1:] == (self.end_of_turn,) else ids

    def _encode_pieces(
        self, pieces: Iterable[_Piece], messages: Sequence[Message]
    ) -> Iterator[int]:
        """Fill message contents into template pieces and yield the token ids."""
        special, run = "", ""
        for piece in pieces:
            if isinstance(piece, int):
                yield from self._encode_after_special(special, run)
                yield piece
                special, run = self._names[piece], ""
            else:
                run += (
                    piece
                    if isinstance(piece, str)
                    else piece.format_content(messages[piece.place].content)
                )
        yield from self._encode_after_special(special, run)

    def _encode_after_special(self, special: str, run: str) -> Sequence[int]:
        """Return the token ids of plain text. ``special`` is the special token before it, or ""."""
        if not run:
            return ()
        if self._split.search(run):
            return self._tokenise(run, plain=True)
        # Some tokenizers put a space before a text, but not behind a special token.
        return self._encode(special + run)[1:] if special else self._encode(run)

    def _tokenise(self, text: str, *, plain: bool = False) -> list[int]:
        """Tokenise text. With ``plain``, names of special tokens in it are ordinary characters."""
        ids: list[int] = self.tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=plain, verbose=False
        )
        return ids

    def _pieces_before_first_answer(
        self, roles: tuple[str, ...], as_text: bool, tools: str
    ) -> tuple[_Piece, ...]:
        """Return the pieces of the chat template that precede the assistant's first answer.

        With ``as_text``, the answer has no sampled ids.
        """
        if as_text and self._rewrites:
            text = self._render((*roles, _ASSISTANT, "user"), tools=tools).partition(_ANSWER)[0]
            return self._split_into_pieces(text, len(roles))
        pieces = self._split_into_pieces(self._render(roles, tools=tools), len(roles))
        return (*pieces, *self._lead) if as_text else pieces

    def _pieces_between_answers(
        self, roles: tuple[str, ...], as_text: bool, tools: str
    ) -> tuple[_Piece, ...]:
        """Return the pieces from one answer's end-of-turn token to the start of the next answer."""
        rewrites = as_text and self._rewrites
        after = (_ASSISTANT, "user") if rewrites else ()
        chat = ("user", _ASSISTANT, *roles, *after)
        text = self._render(chat, first=-2, tools=tools).split(_ANSWER)[1]
        pieces = self._split_into_pieces(text, len(roles))
        pieces = pieces[pieces.index(self.end_of_turn) :]
        return (*pieces, *self._lead) if as_text and not rewrites else pieces

    def _render(
        self, roles: Sequence[str], *, first: int = 0, prompt: bool = True, tools: str = ""
    ) -> str:
        """Render the chat template with message placeholders, numbered from ``first``."""
        messages = [
            {"role": role, "content": _ANSWER if role == _ASSISTANT else _placeholder(index)}
            for index, role in enumerate(roles, first)
        ]
        described = json.loads(tools) if tools else None
        text = self._apply_template(
            messages, tokenize=False, add_generation_prompt=prompt, tools=described
        )
        assert isinstance(text, str)
        if text.count(_ANSWER) != roles.count(_ASSISTANT):
            raise self._template_error("the template leaves out or repeats the assistant's answer")
        return text

    def _apply_template(self, messages: list[dict[str, str]], **options: Any) -> Any:
        """Call the tokenizer's ``apply_chat_template``. Its template is untrusted code."""
        roles = ", ".join(message["role"] for message in messages) or "none"
        apply = partial(self.tokenizer.apply_chat_template, messages, **options, **self._switches)
        try:
            return _call_with_time_limit(apply)
        except TemplateError as error:
            raise self._template_error(
                f"the template rejects the roles {roles} ({error})"
            ) from error
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise self._template_error(
                f"the template fails for the roles {roles} ({problem})"
            ) from error

    def _split_into_pieces(self, text: str, n_slots: int) -> tuple[_Piece, ...]:
        pieces: list[_Piece] = []
        for part in self._split.split(text):
            if part in self._special:
                pieces.append(self._special[part])
            elif part:
                pieces += _split_at_slots(part)
        places = sorted(piece.place for piece in pieces if isinstance(piece, _Slot))
        if places != list(range(n_slots)):
            raise self._template_error("the template leaves out or repeats a message")
        return tuple(pieces)

    def _format_today(self, form: str) -> str:
        """Return the date that a template prints, as ``strftime_now`` in templates does."""
        if not self._prints_date:
            self._prints_date = True
            logger.info("date=%s: the chat template prints this date in every prompt", TODAY.date())
        return TODAY.strftime(form)

    def _check_generation_prompt(self) -> None:
        """Check that the template supports ``add_generation_prompt`` if answers have a header."""
        prompt = self._render(["user"])
        if prompt == self._render(["user"], prompt=False):
            before, _, _ = self._render(["user", _ASSISTANT], prompt=False).partition(_ANSWER)
            if before.rstrip() != prompt.rstrip():
                raise self._template_error("the template ignores add_generation_prompt")

    def _find_end_of_turn(self) -> int:
        text = self._render(("user", _ASSISTANT, "user")).partition(_ANSWER)[2]
        token = self._split.search(text) if self._special else None
        if token is None or text[: token.start()].strip():
            raise self._template_error("the template does not end answers with a special token")
        return self._special[token[0]]

    def _find_answer_prefix(self, prompt: str) -> tuple[tuple[_Piece, ...], bool]:
        """Return the text between the end of a prompt and an answer that was not sampled.

        The second value is True if earlier answers do not begin like this, because the template
        then writes them without the thought that a prompt opens.
        """
        earlier = self._render(("user", _ASSISTANT, "user")).partition(_ANSWER)[0]
        if not self.opened:
            text = earlier.removeprefix(prompt) if earlier.startswith(prompt) else ""
            return self._split_into_pieces(text, 0), False
        last = self._render(("user", _ASSISTANT), prompt=False).partition(_ANSWER)[0]
        closed = (text.removeprefix(prompt) for text in (earlier, last) if text.startswith(prompt))
        text = next((text for text in closed if THOUGHT_CLOSES in text), f"{THOUGHT_CLOSES}\n\n")
        return self._split_into_pieces(text, 0), not earlier.startswith(prompt)

    def _check_prompt_ids(self) -> None:
        """Check that a prompt built from pieces has the ids that the tokenizer itself produces."""
        asked = [{"role": "user", "content": _PROBE}]
        own = self._apply_template(asked, add_generation_prompt=True, return_dict=False)
        ids = self.prompt_ids([Message("user", _PROBE)])
        if list(ids) != own:
            place = next((i for i, (a, b) in enumerate(zip(ids, own, strict=False)) if a != b), 0)
            raise self._template_error(
                f"a prompt's pieces and the whole prompt have different token ids (token {place})"
            )

    def _template_error(self, why: str) -> ModelError:
        return ModelError(
            f"The chat template cannot be split into pieces: {why}. Put a different "
            "chat_template.jinja into the model's folder."
        )


def _call_with_time_limit(work: Callable[[], T]) -> T:
    """Call a function and return its result, stopping the function after a time limit.

    Raises:
        TimeoutError: after more than ``_LIMIT_S`` seconds of both wall time and processor time.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=run, name="coevo-template", daemon=True)
    begun, processor = perf_counter(), process_time()
    thread.start()
    while not wait([future], timeout=0.1).done:
        if min(perf_counter() - begun, process_time() - processor) > _LIMIT_S:
            stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
            stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            raise TimeoutError(f"it did not end within {_LIMIT_S:g} s")
    return future.result()


def _placeholder(index: int) -> str:
    return f"{_LEFT}CoevoSlot{index}End{_RIGHT}" if index >= 0 else "question"


def _split_at_slots(text: str) -> Iterator[_Piece]:
    """Split a chat template's text at the message placeholders, stripping adjacent whitespace."""
    position = 0
    for match in _SLOT.finditer(text):
        before, after = text[position : match.start()], text[match.end() :]
        if before.endswith(_QUOTED_LEFT) and after.startswith(_QUOTED_RIGHT):
            yield before.removesuffix(_QUOTED_LEFT)
            yield _Slot(int(match[1]), False, False, quoted=True)
            position = match.end() + len(_QUOTED_RIGHT)
            continue
        trim_left, trim_right = not before.endswith(_LEFT), not after.startswith(_RIGHT)
        yield before.removesuffix("\t" if trim_left else _LEFT)
        yield _Slot(int(match[1]), trim_left, trim_right)
        rest = after.removeprefix("\t" if trim_right else _RIGHT)
        position = len(text) - len(rest)
    yield text[position:]
