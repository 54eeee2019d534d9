"""What a chat-completions endpoint is asked, says, costs and gets wrong; no I/O."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.notes import Usage
from coevo_gym.core.seams import Prompt
from coevo_gym.core.task import FrozenModel

_TOKENS_AROUND_A_MESSAGE = 16
_BYTES_A_TOKEN = 6
"""More than tokenizers make of ordinary text, which is four or less."""
_OVERFLOW_CODES = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW_STATUS = {400, 413, 422, 500}
"""OpenAI, vLLM, SGLang and llama.cpp say 400, gateways 413, TGI 422, older llama.cpp 500."""
_OVERFLOW_TEXT = re.compile(
    r"maximum context length|longer than the (maximum )?model('s)? (context )?length"
    r"|exceeds? (the )?(available |model's )?(maximum )?context (size|length|window)"
    r"|context (size|length|window) exceeded|prompt is too long|max_new_tokens`? must be <=",
    re.IGNORECASE,
)


class EndpointConfig(FrozenModel):
    """An OpenAI-compatible endpoint, and how it is used."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(default="default", min_length=1)
    """Name of the model, as the server knows it."""
    base_url: str = Field(
        default="https://api.openai.com/v1", pattern=r"^https?://[^/@?#]+[^@?#]*$"
    )
    """Where the API is, ``/v1`` included and without a key in it."""
    api_key_env: str | None = Field(default="OPENAI_API_KEY", min_length=1)
    """Environment variable that holds the key; if it is unset, or None, a place-holder is sent."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the limit of an answer; OpenAI's newer models want the second."""
    send_temperature: bool = True
    """Whether a request says its temperature; OpenAI's reasoning models refuse all but their own,
    at which they then sample, in greedy evaluations too."""
    max_concurrency: int = Field(default=16, ge=1)
    """Most requests in flight at once."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Most seconds for one attempt, from the first byte sent to the last one read."""
    max_attempts: int = Field(default=5, ge=1)
    """Most times that a request is sent."""
    backoff_base_s: float = Field(default=0.5, gt=0)
    """Longest wait before the second attempt; it doubles with each one."""
    backoff_cap_s: float = Field(default=30.0, gt=0)
    """Longest wait, also where the server asks for a longer one."""
    usd_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    """Price of what is sent."""
    usd_per_million_completion_tokens: float = Field(default=0.0, ge=0)
    """Price of what is answered, hidden thoughts included."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Most tokens, sent and answered, over the whole life of a run; None for no cap."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Most money over the whole life of a run; None for no cap."""

    @model_validator(mode="after")
    def _a_cap_on_money_has_prices(self) -> EndpointConfig:
        if self.max_cost_usd is not None and self.cost_usd(1, 1) == 0:
            raise ValueError(
                "max_cost_usd caps nothing while both prices are 0: set "
                "usd_per_million_prompt_tokens and usd_per_million_completion_tokens."
            )
        return self

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Price of so many tokens, in US dollars."""
        return (
            prompt_tokens * self.usd_per_million_prompt_tokens
            + completion_tokens * self.usd_per_million_completion_tokens
        ) / 1e6


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """What an endpoint was asked and what that cost.

    Attributes:
        requests: requests sent, those that were sent again included.
        retries: how many of these were sent again.
        prompt_tokens: tokens sent, as the server counts them.
        completion_tokens: tokens answered, hidden thoughts included, as the server counts them.
        unknown: answers whose tokens the server did not tell; they are in no sum here.
        empty: answers without text: filtered, or nothing but thoughts or calls.
        overflows: prompts that did not fit into the model's context.
        lost: requests that got no answer in all their attempts.
        cost_usd: price of the tokens, each at the prices that held when it was counted.
        capped_tokens: what counts towards a cap on tokens: what the server says, but not less than
            the texts that were sent and answered can be.
        capped_usd: what counts towards a cap on money, likewise.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown: int = 0
    empty: int = 0
    overflows: int = 0
    lost: int = 0
    cost_usd: float = 0.0
    capped_tokens: int = 0
    capped_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Tokens sent and answered."""
        return self.prompt_tokens + self.completion_tokens

    def __str__(self) -> str:
        priced = self.cost_usd or not self.total_tokens
        return (
            f"{self.requests:,} requests, {self.retries:,} of them sent again, {self.lost:,} lost; "
            f"{self.prompt_tokens:,} tokens sent and {self.completion_tokens:,} answered, "
            + (f"{self.cost_usd:.4f} USD" if priced else "price not set")
        )


class _Bound(NamedTuple):
    """The most that a request can take."""

    tokens: int
    cost_usd: float


class Spending:
    """Counts usage, and lets no request pass that might break a cap.

    Caps do not rest on what a server says of itself. An answer counts at least one token for every
    six bytes of its prompt and of its text, one of which the server tells nothing counts the most
    that it can have taken, and a prompt that got no answer counts as sent.

    A request is bounded by its ``max_tokens`` and by the UTF-8 bytes of its prompt, since a token
    is at least one byte. Where the caps leave no room for it beside the bounds of the requests in
    flight, it waits until these are counted, so that only what was truly spent can refuse it.

    Args:
        config: caps and prices.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.usage = EndpointUsage()
        self._config = config
        self._held: list[_Bound] = []
        self._settled = asyncio.Condition()

    def add(self, **counts: int) -> None:
        """Count; names are those of :class:`EndpointUsage`."""
        cost = self._config.cost_usd(
            counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
        )
        sums = {name: getattr(self.usage, name) + count for name, count in counts.items()}
        self.usage = replace(self.usage, **sums, cost_usd=self.usage.cost_usd + cost)

    def count(self, prompt: Prompt, text: str, told: tuple[int, int] | None) -> None:
        """Count an answer.

        Args:
            prompt: what was asked.
            text: what was answered.
            told: tokens sent and answered, as the server says; None if it does not.
        """
        if told is None:
            bound = self._bound(prompt)
            self._add_capped(bound.tokens, bound.cost_usd)
            self.add(unknown=1)
            return
        self.add(prompt_tokens=told[0], completion_tokens=told[1])
        least = _tokens_in(prompt), _n_bytes(text) // _BYTES_A_TOKEN
        sent, answered = map(max, told, least)
        self._add_capped(sent + answered, self._config.cost_usd(sent, answered))

    def cost(self, prompt: Prompt, told: tuple[int, int] | None) -> Usage:
        """What an answer has cost, by the server's own count; without one, the most it can be."""
        sent, answered = told or self._most(prompt)
        usd = self._config.cost_usd(sent, answered)
        return Usage(prompt_tokens=sent, completion_tokens=answered, usd=usd)

    def count_unanswered(self, prompt: Prompt) -> None:
        """Count a prompt that was sent, and to which no answer came."""
        sent = _tokens_in(prompt)
        self._add_capped(sent, self._config.cost_usd(sent, 0))

    def _add_capped(self, tokens: int, cost_usd: float) -> None:
        self.usage = replace(
            self.usage,
            capped_tokens=self.usage.capped_tokens + tokens,
            capped_usd=self.usage.capped_usd + cost_usd,
        )

    def state_dict(self) -> dict[str, Any]:
        """The counts as JSON."""
        return asdict(self.usage)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`, also one from before caps had counts of their own."""
        told = EndpointUsage(**state)
        self.usage = replace(
            told,
            capped_tokens=max(told.capped_tokens, told.total_tokens),
            capped_usd=max(told.capped_usd, told.cost_usd),
        )

    @asynccontextmanager
    async def hold(self, prompt: Prompt) -> AsyncIterator[None]:
        """Reserve what a request may take, until it is counted.

        Raises:
            BudgetSpent: if it might pass a cap.
        """
        bound = self._bound(prompt)
        async with self._settled:
            await self._settled.wait_for(lambda: not self._held or not self._broken(bound))
            if broken := self._broken(bound):
                raise BudgetSpent(broken)
            self._held.append(bound)
        try:
            yield
        finally:
            self._held.remove(bound)
            async with self._settled:
                self._settled.notify_all()

    def _bound(self, prompt: Prompt) -> _Bound:
        sent, answered = self._most(prompt)
        return _Bound(sent + answered, self._config.cost_usd(sent, answered))

    @staticmethod
    def _most(prompt: Prompt) -> tuple[int, int]:
        """Most tokens of a prompt and of its answer."""
        sent = sum(
            _n_bytes(message.content) + _TOKENS_AROUND_A_MESSAGE for message in prompt.messages
        )
        return sent, prompt.sampling.max_tokens

    def _broken(self, bound: _Bound) -> str:
        """Which cap the request might pass, in words, or ""."""
        usage, config = self.usage, self._config
        tokens = usage.capped_tokens + sum(held.tokens for held in self._held)
        cost = usage.capped_usd + sum(held.cost_usd for held in self._held)
        if config.max_tokens_total is not None and tokens + bound.tokens > config.max_tokens_total:
            return (
                f"{usage.capped_tokens} tokens are spent of max_tokens_total="
                f"{config.max_tokens_total}, and the next request to {config.model} may take up "
                f"to {bound.tokens}. Raise max_tokens_total to go on."
            )
        if config.max_cost_usd is not None and cost + bound.cost_usd > config.max_cost_usd:
            return (
                f"{usage.capped_usd:.4f} USD are spent of max_cost_usd={config.max_cost_usd}, and "
                f"the next request to {config.model} may take up to {bound.cost_usd:.4f}. "
                "Raise max_cost_usd to go on."
            )
        return ""


def _n_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _tokens_in(prompt: Prompt) -> int:
    """Fewest tokens that a prompt can be."""
    return sum(_n_bytes(message.content) for message in prompt.messages) // _BYTES_A_TOKEN


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


_TokenCount = Annotated[int, Field(ge=0, le=10**12)]
"""Tokens of one request; a larger number is no count, and might not even fit into a float."""


class _Tokens(BaseModel):
    prompt_tokens: _TokenCount | None = None
    completion_tokens: _TokenCount | None = None


class Reply(BaseModel):
    """A chat completion, as far as a policy reads it; what else it holds is ignored."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None

    @property
    def text(self) -> str:
        """The answer; "" if it was filtered, or is nothing but thoughts or calls."""
        return "" if self.finish_reason == "content_filter" else self._first.message.content or ""

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, in the server's words."""
        return self._first.finish_reason

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Tokens sent and answered, or None if the server tells them not, or not both."""
        usage = self.usage or _Tokens()
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        return usage.prompt_tokens, usage.completion_tokens

    @property
    def _first(self) -> _Choice:
        return self.choices[0]


class _Error(BaseModel):
    code: str | int | None = None
    type: str | None = None
    message: str


class _Refusal(BaseModel):
    error: _Error


def says_overflow(content: bytes) -> bool:
    """Whether a body is an error in OpenAI's form that says that the prompt does not fit."""
    try:
        error = _Refusal.model_validate_json(content).error
    except ValidationError:
        return False
    return is_overflow(400, (error.code, error.type), error.message)


def read_reply(content: bytes) -> Reply | None:
    """Read the body of an answer; None if it is no chat completion.

    Lone surrogates, which a model's answer may hold, are not an error here.
    """
    try:
        return Reply.model_validate(json.loads(content))
    except (ValueError, RecursionError, ValidationError):
        return None


def is_overflow(status: int, codes: Collection[object], text: str) -> bool:
    """Whether an error says that the prompt does not fit into the model's context.

    Args:
        status: HTTP status.
        codes: the error's code and type, which some servers swap.
        text: its message.

    Example:
        >>> is_overflow(400, ["context_length_exceeded"], "")
        True
        >>> is_overflow(400, [None], "Requested tokens (2285) exceed context window of 2048")
        True
        >>> is_overflow(400, [None], "temperature must not be negative")
        False
    """
    if status not in _OVERFLOW_STATUS:
        return False
    return any(code in codes for code in _OVERFLOW_CODES) or bool(_OVERFLOW_TEXT.search(text))


def retry_after_s(header: str | None, now: datetime | None = None) -> float:
    """Seconds that a ``Retry-After`` header asks to wait; 0 if it is missing or unreadable.

    Args:
        header: seconds or a date (RFC 9110, section 10.2.3).
        now: what a date is measured from; the present by default.

    Example:
        >>> retry_after_s("2"), retry_after_s("-1"), retry_after_s("soon"), retry_after_s(None)
        (2.0, 0.0, 0.0, 0.0)
    """
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header).astimezone(UTC)
        except (ValueError, TypeError, OverflowError):
            return 0.0
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return 0.0 if math.isnan(seconds) else max(0.0, seconds)


def retry_delay_s(config: EndpointConfig, attempt: int, asked_s: float, draw: float) -> float:
    """Seconds to wait after a failed attempt: exponential back-off with full jitter.

    ``min(cap, asked_s + draw * min(cap, base * 2 ** (attempt - 1)))``: what the server asks for is
    never undercut up to the cap, and requests that were told the same do not come back together.

    Args:
        config: base and cap.
        attempt: how many attempts have failed, from 1.
        asked_s: what the server asks for; 0 if nothing.
        draw: uniform in [0, 1).

    Source: "full jitter", Brooker, Exponential Backoff And Jitter (AWS, 2015).

    Example:
        >>> config = EndpointConfig(model="m", backoff_base_s=1.0, backoff_cap_s=5.0)
        >>> [retry_delay_s(config, attempt, 0.0, 0.5) for attempt in (1, 2, 3, 4)]
        [0.5, 1.0, 2.0, 2.5]
        >>> retry_delay_s(config, 1, 2.0, 0.5), retry_delay_s(config, 1, 3600.0, 0.5)
        (2.5, 5.0)
    """
    cap = config.backoff_cap_s
    jitter = draw * min(cap, config.backoff_base_s * 2.0 ** min(attempt - 1, 60))
    return min(cap, asked_s + jitter)
