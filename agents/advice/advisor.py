"""An advisor that queries a model and validates each answer against a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NoReturn

from pydantic import ValidationError

from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.inquiry import Answer, Inquiry, ModelT
from coevo_gym.core.seams import Completion, Finish, Message, Policy, Prompt, Request
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import FREE, NO_USAGE, Meter, Prices, Tokens, Usage
from coevo_gym.core.thoughts import text_without_thoughts, without_thoughts
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.core.waiting import report_activity
from coevo_gym.prompts.inquiry import InquiryPrompt, load_inquiry

_TOKENS_AROUND_A_CHAT = 64
"""Upper bound on the tokens that chat templates add, including a default system text."""
_TOKENS_AROUND_A_MESSAGE = 16
_UNSENT = Completion("", None, Finish.UNSENT)


def max_token_counts(request: Request) -> Tokens:
    """Return upper bounds on a request's token counts, assuming one token per UTF-8 byte."""
    if not isinstance(request, Prompt):
        return 0, 0
    contents = sum(
        len(message.content.encode(errors="replace")) + len(message.ids)
        for message in request.messages
    )
    if request.after is not None:
        contents += len(request.after.prompt_ids) + len(request.after.ids)
    around = _TOKENS_AROUND_A_CHAT + _TOKENS_AROUND_A_MESSAGE * len(request.messages)
    return contents + around, request.sampling.max_tokens


class Budgeted:
    """A policy wrapper that refuses requests that might exceed a usage cap.

    The first request that exceeds the budget and all later requests are not sent; they finish with
    ``UNSENT``. A batch whose upper bound exceeds the budget is sent in parts, because requests
    often cost less than their bound. Policies may share a meter. Requests without a purpose get the
    default ``purpose``.
    """

    def __init__(
        self, policy: Policy, meter: Meter, *, purpose: str = "", prices: Prices = FREE
    ) -> None:
        self.policy, self.meter, self.purpose, self.prices = policy, meter, purpose, prices

    @property
    def version(self) -> int:
        """Version of the policy, or 0 if the policy never changes."""
        return getattr(self.policy, "version", 0)

    def for_purpose(self, purpose: str) -> Budgeted:
        """Return a copy that counts usage under ``purpose`` unless a request has its own."""
        return Budgeted(self.policy, self.meter, purpose=purpose, prices=self.prices)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Return one completion per request, in order."""
        most = [max_token_counts(request) for request in requests]
        done: list[Completion] = []
        while len(done) < len(requests):
            with self.meter.reserve(most[len(done) :], self.prices) as n:
                batch = requests[len(done) : len(done) + n]
                try:
                    answers = self.policy.generate(batch) if batch else ()
                except BudgetSpent:  # an endpoint has its own caps
                    answers = ()
                for request, answer in zip(batch, answers, strict=bool(answers)):
                    if answer.finish is Finish.CAPPED:
                        done.append(_UNSENT)
                        continue
                    usage = _usage(answer)
                    purpose = request.purpose if isinstance(request, Prompt) else ""
                    self.meter.count(purpose or self.purpose, usage)
                    done.append(answer._replace(usage=usage))
            if not answers:
                break
        return done + [_UNSENT] * (len(requests) - len(done))


def _usage(answer: Completion) -> Usage:
    """Return an answer's token usage, derived from its decision if the policy reports none."""
    if answer.usage.calls or answer.usage.cached:
        return answer.usage
    if not isinstance(answer.decision, TokenDecision):
        return answer.usage + Usage(calls=1)
    read, output_tokens = len(answer.decision.prompt_ids), len(answer.decision.ids)
    return answer.usage + Usage(calls=1, prompt_tokens=read, completion_tokens=output_tokens)


MAX_CHARS = 20_000
"""Maximum length of a string in an answer; longer strings are truncated."""
_DEEPEST = 64
_FENCES = 8
_SAID = 300
_BRACKETS = re.compile(r'["\\{}\[\]]')


class Unreadable(ValueError):
    """Raised if an answer cannot be used. The message tells the model how to fix it."""


def read_answer(text: str, schema: type[ModelT]) -> ModelT:
    """Parse the JSON value in an answer.

    The value is the last fenced block of JSON, or else the text between the outermost braces.
    Thoughts are ignored. Unknown fields are dropped. Strings are truncated to :data:`MAX_CHARS` and
    cleaned of characters that UTF-8 cannot encode.

    Raises:
        Unreadable: if the answer has no valid value.

    Example:
        >>> from pydantic import BaseModel
        >>> class Point(BaseModel):
        ...     x: int
        >>> read_answer('<think>{}</think>Here it is: {"x": 3, "why": "it is"}', Point)
        Point(x=3)
    """
    try:
        return _validate_known_fields(_clean_json(_parse_object(without_thoughts(text))), schema)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
        raise Unreadable(clean_text(problem, _SAID)) from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def _parse_object(text: str) -> dict[str, Any]:
    """Find and parse the JSON object in a string."""
    if text.startswith("{") and text.endswith("}"):  # its strings may contain fences
        return _parse_json(text)
    parts = text.split("```")
    for number in list(range(1, len(parts), 2))[: -_FENCES - 1 : -1]:
        if "{" in parts[number]:
            try:
                return _parse_json(_within_braces(parts[number]))
            except Unreadable:
                continue  # a fence may also be inside a string
    if "{" not in text:
        raise Unreadable("it contains no JSON object")
    return _parse_json(_within_braces(text))


def _within_braces(text: str) -> str:
    """Return the text from the first opening brace to the last closing brace, if any."""
    begin, end = text.find("{"), text.rfind("}")
    return text[begin : end + 1] if end > begin else text[begin:]


def _parse_json(text: str) -> dict[str, Any]:
    _check_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=_require_unique_keys, parse_constant=_reject_constant
        )
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is not JSON: {error}") from error
    except Unreadable:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise Unreadable("it contains a number that is too large") from error
    if not isinstance(value, dict):
        raise Unreadable("it is not a JSON object")
    return value


def _check_depth(text: str) -> None:
    """Reject text whose nesting could overflow the parser's stack."""
    depth, quoted, skip = 0, False, -1
    for match in _BRACKETS.finditer(text):
        place, mark = match.start(), match[0]
        if place == skip:
            continue
        if mark == "\\":
            skip = place + 1
        elif mark == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if mark in "{[" else -1
            if depth > _DEEPEST:
                raise Unreadable(f"it is nested deeper than {_DEEPEST}")


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise Unreadable(f"it has the key {clean_text(key, 64)!r} twice")
        values[key] = value
    return values


def _reject_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not a JSON number")


def _clean_json(value: Any) -> Any:
    """Return a copy of a JSON value with strings shortened and made encodable as UTF-8."""
    if isinstance(value, str):
        return clean_text(value, MAX_CHARS)
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("it contains a number that is too large")
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if isinstance(value, Mapping):
        return {clean_text(key, MAX_CHARS): _clean_json(item) for key, item in value.items()}
    return value


def _validate_known_fields(value: dict[str, Any], schema: type[ModelT]) -> ModelT:
    """Validate a value; drop its unknown fields if the schema forbids them."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        unknown = [e["loc"] for e in error.errors(include_url=False) if e["type"] == _UNKNOWN]
        if not unknown:
            raise
    for place in unknown:
        _drop_field(value, place)
    return schema.model_validate(value)


_UNKNOWN = "extra_forbidden"


def _drop_field(value: Any, place: tuple[str | int, ...]) -> None:
    *above, last = place
    for part in above:
        if isinstance(part, str):
            # Otherwise the part names a member of a union, which is not a position in the value.
            value = value.get(part, value) if isinstance(value, dict) else value
        elif isinstance(value, list) and part < len(value):
            value = value[part]
    if isinstance(value, dict):
        value.pop(last, None)


_MAX_PROMPT = 4_000_000
_QUOTED = 8_000
"""Maximum characters of an unusable answer that the repair request quotes."""
_LOST_IN_A_ROW = 3
_NOT_ASKED = "endpoint: not asked, because three requests in a row were lost"


@dataclass(slots=True)
class _Case(Generic[ModelT]):
    """The state of a pending inquiry."""

    inquiry: Inquiry[ModelT]
    prompt: InquiryPrompt
    inputs: Mapping[str, Any]
    messages: tuple[Message, ...] = ()
    usage: Usage = NO_USAGE
    value: ModelT | None = None
    problem: str = ""
    said: str = ""
    outcome: Finish | None = None
    repairing: bool = False

    @property
    def purpose(self) -> str:
        """Purpose to which the usage is attributed."""
        return self.inquiry.purpose or self.prompt.header.name

    @property
    def outcome_usage(self) -> Usage:
        """The outcome as a ``Usage``; empty if the inquiry was never sent."""
        if self.value is not None:
            return Usage(repaired=1) if self.repairing else Usage(used=1)
        unsent = self.outcome is Finish.UNSENT and not self.repairing
        return NO_USAGE if unsent else Usage(by_rule=1)


class ModelAdvisor:
    """An :class:`~coevo_gym.core.inquiry.Advisor` that queries a policy.

    A batch of inquiries is sent as one batch of requests. A second batch shortens prompts that did
    not fit, and a third asks the model once to repair each unusable answer, with a description of
    the problem. See :func:`read_answer` for the format of answers.
    After three lost requests in a row, the rest of a batch is not sent.

    Args:
        policy: the policy, usually :class:`Budgeted`.
        at_once: maximum requests to send before checking for lost requests; None to send all at
            once, which suits a model in this process.
        load: loads prompts by name.
        count: called for each inquiry with its purpose and a usage that records the outcome.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        at_once: int | None = 16,
        load: Callable[[str], InquiryPrompt] = load_inquiry,
        count: Callable[[str, Usage], None] = lambda purpose, usage: None,
    ) -> None:
        self.policy = policy
        self.at_once = at_once
        self._count = count
        self._load = lru_cache(maxsize=None)(load)

    def ask(self, inquiries: Sequence[Inquiry[ModelT]]) -> list[Answer[ModelT]]:
        """Return one answer per inquiry, in order.

        Raises:
            ConfigError: if a prompt does not exist, or declares different inputs.
            ModelError: if the policy cannot be reached: its key is rejected, or its server is down.
            BudgetSpent: if the policy has a cap of its own that leaves no room for a request.
        """
        cases = [_Case(one, self._load(one.prompt), one.inputs) for one in inquiries]
        for case in cases:
            case.messages = _question_messages(case)
        self._send_and_record(cases)
        longer = []
        for case in cases:
            if case.outcome is Finish.OVERFLOW and case.inquiry.shorten:
                case.inputs = case.inquiry.shorten()
                case.messages = _question_messages(case)
                longer.append(case)
        self._send_and_record(longer)
        broken = [case for case in cases if case.problem.startswith("schema: ")]
        for case in broken:
            case.messages, case.repairing = _repair_messages(case), True
        self._send_and_record(broken)
        for case in cases:
            case.usage += case.outcome_usage
            self._count(case.purpose, case.outcome_usage)
        return [Answer(case.value, case.problem, case.usage) for case in cases]

    def _send_and_record(self, cases: Sequence[_Case[ModelT]]) -> None:
        lost = 0
        for first in range(0, len(cases), self.at_once or max(1, len(cases))):
            some = cases[first : first + (self.at_once or len(cases))]
            if lost >= _LOST_IN_A_ROW:
                for case in some:
                    case.problem, case.outcome = _NOT_ASKED, Finish.LOST
                continue
            requests = [
                Prompt(
                    case.messages,
                    case.inquiry.sampling,
                    template=case.prompt.label,
                    purpose=case.purpose,
                )
                for case in some
            ]
            report_activity(0, 0)
            answers = self.policy.generate(requests)
            report_activity(0, sum(answer.usage.tokens for answer in answers))
            for case, answer in zip(some, answers, strict=True):
                if answer.finish is Finish.CAPPED:
                    raise BudgetSpent(answer.text)
                _record_answer(case, answer)
                if lost < _LOST_IN_A_ROW:
                    lost = lost + 1 if answer.finish is Finish.LOST else 0


def _question_messages(case: _Case[ModelT]) -> tuple[Message, ...]:
    system = clean_text(case.prompt.system_text(case.inputs), _MAX_PROMPT)
    user = Message("user", clean_text(case.prompt.user_text(case.inputs), _MAX_PROMPT))
    return (Message("system", system), user) if system else (user,)


def _repair_messages(case: _Case[ModelT]) -> tuple[Message, ...]:
    """Return the chat so far, followed by a request to repair the answer."""
    text = clean_text(case.said, _QUOTED)
    error = case.problem.removeprefix("schema: ")
    asked = clean_text(case.prompt.repair_text(case.inputs, error), _MAX_PROMPT)
    return (*case.messages, Message("assistant", text), Message("user", asked))


def _record_answer(case: _Case[ModelT], answer: Completion) -> None:
    """Store a request's outcome in the state of its inquiry."""
    repairing = case.problem if case.problem.startswith("schema: ") else ""
    case.usage = case.usage + answer.usage
    case.outcome, case.said = answer.finish, text_without_thoughts(answer)
    match answer.finish:
        case Finish.UNSENT:
            case.problem = "budget"
        case Finish.REFUSED:
            case.problem = repairing or f"refused: {clean_text(answer.text, 300)}"
        case Finish.LOST:
            case.problem = f"endpoint: {clean_text(answer.text, 300)}"
        case Finish.OVERFLOW:
            case.problem = repairing or "overflow"
        case Finish.STOP | Finish.LENGTH:
            try:
                case.value, case.problem = read_answer(case.said, case.inquiry.schema), ""
            except Unreadable as error:
                cut = answer.finish is Finish.LENGTH
                most = case.inquiry.sampling.max_tokens
                why = f"{error}; it was cut after {most} tokens, so be shorter" if cut else error
                case.problem = repairing or f"schema: {why}"
