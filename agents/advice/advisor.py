"""A model that is asked questions, each with a schema for its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic

from coevo_gym.agents.advice.reading import Unreadable, read_answer
from coevo_gym.core.inquiry import Answer, Inquiry, ModelT
from coevo_gym.core.seams import Completion, Finish, Message, Policy, Prompt
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.waiting import acted
from coevo_gym.prompts.answers import without_thoughts
from coevo_gym.prompts.inquiry import InquiryPrompt, load_inquiry

_MAX_PROMPT = 4_000_000
_QUOTED = 8_000
"""Characters of an unusable answer that are shown to the model again."""
_LOST_IN_A_ROW = 3
_NOT_ASKED = "endpoint: not asked, after three requests in a row that were lost"


@dataclass(slots=True)
class _Case(Generic[ModelT]):
    """The state of an inquiry until its answer."""

    inquiry: Inquiry[ModelT]
    prompt: InquiryPrompt
    inputs: Mapping[str, Any]
    messages: tuple[Message, ...] = ()
    usage: Usage = NO_USAGE
    value: ModelT | None = None
    problem: str = ""
    said: str = ""
    outcome: Finish | None = field(default=None)
    repairing: bool = False

    @property
    def purpose(self) -> str:
        """Return the purpose under which usage is counted."""
        return self.inquiry.purpose or self.prompt.header.name

    @property
    def ended(self) -> Usage:
        """Return the outcome as a count; empty if the budget did not allow the question."""
        if self.value is not None:
            return Usage(repaired=1) if self.repairing else Usage(used=1)
        unsent = self.outcome is Finish.UNSENT and not self.repairing
        return NO_USAGE if unsent else Usage(by_rule=1)


class ModelAdvisor:
    """An :class:`~coevo_gym.core.inquiry.Advisor` that asks a policy.

    A batch of inquiries is one batch of requests. Two more batches follow: prompts that did not
    fit, shortened once, and one request to repair each unusable answer, with a description of the
    problem. See :func:`~coevo_gym.agents.advice.reading.read_answer` for the format of answers.
    After three lost requests in a row, the rest of a batch is not sent.

    Args:
        policy: the policy, usually a :class:`~coevo_gym.agents.advice.budget.Budgeted` one.
        at_once: maximum requests to send before checking for lost ones; None for all, which suits a
            model in this process.
        load: loads prompts by name.
        count: called with the purpose of each question and its outcome, as part of its usage.
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
            ConfigError: if a prompt does not exist, or declares other inputs.
            ModelError: if the policy cannot be reached: a key is refused, or a server is down.
        """
        cases = [_Case(one, self._load(one.prompt), one.inputs) for one in inquiries]
        for case in cases:
            case.messages = _question(case)
        self._send(cases)
        longer = [
            case for case in cases if case.outcome is Finish.OVERFLOW and case.inquiry.shorten
        ]
        for case in longer:
            assert case.inquiry.shorten is not None
            case.inputs = case.inquiry.shorten()
            case.messages = _question(case)
        self._send(longer)
        broken = [case for case in cases if case.problem.startswith("schema: ")]
        for case in broken:
            case.messages, case.repairing = _repair(case), True
        self._send(broken)
        for case in cases:
            case.usage += case.ended
            self._count(case.purpose, case.ended)
        return [Answer(case.value, case.problem, case.usage) for case in cases]

    def _send(self, cases: Sequence[_Case[ModelT]]) -> None:
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
            acted(0, 0)
            answers = self.policy.generate(requests)
            acted(0, sum(said.usage.tokens for said in answers))
            for case, said in zip(some, answers, strict=True):
                _take(case, said)
                if lost < _LOST_IN_A_ROW:
                    lost = lost + 1 if said.finish is Finish.LOST else 0


def _question(case: _Case[ModelT]) -> tuple[Message, ...]:
    system = clean_text(case.prompt.system(case.inputs), _MAX_PROMPT)
    user = Message("user", clean_text(case.prompt.user(case.inputs), _MAX_PROMPT))
    return (Message("system", system), user) if system else (user,)


def _repair(case: _Case[ModelT]) -> tuple[Message, ...]:
    """Return the chat so far with a description of the problem."""
    said = clean_text(without_thoughts(case.said), _QUOTED)
    error = case.problem.removeprefix("schema: ")
    asked = clean_text(case.prompt.repair(case.inputs, error), _MAX_PROMPT)
    return (*case.messages, Message("assistant", said), Message("user", asked))


def _take(case: _Case[ModelT], said: Completion) -> None:
    """Process the result of a request."""
    repairing = case.problem if case.problem.startswith("schema: ") else ""
    case.usage = case.usage + said.usage
    case.outcome, case.said = said.finish, said.text
    match said.finish:
        case Finish.UNSENT:
            case.problem = "budget"
        case Finish.LOST:
            case.problem = f"endpoint: {clean_text(said.text, 300)}"
        case Finish.OVERFLOW:
            case.problem = repairing or "overflow"
        case Finish.STOP | Finish.LENGTH:
            try:
                case.value, case.problem = read_answer(said.text, case.inquiry.schema), ""
            except Unreadable as error:
                cut = said.finish is Finish.LENGTH
                most = case.inquiry.sampling.max_tokens
                why = f"{error}; it was cut after {most} tokens, so be shorter" if cut else error
                case.problem = repairing or f"schema: {why}"
