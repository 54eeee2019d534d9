"""What a chat-completions endpoint is asked, says, costs and gets wrong; no I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coevo_gym.core.seams import Prompt
from coevo_gym.core.spend import Caps, Cost, Prices, Tokens
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
    max_usd_total: float | None = Field(default=None, gt=0)
    """Most money over the whole life of a run, in US dollars; None for no cap."""

    @model_validator(mode="after")
    def _a_cap_on_money_has_prices(self) -> EndpointConfig:
        if self.max_usd_total is not None and not any(self.prices):
            raise ValueError(
                "max_usd_total caps nothing while both prices are 0: set "
                "usd_per_million_prompt_tokens and usd_per_million_completion_tokens."
            )
        return self

    @property
    def prices(self) -> Prices:
        """Prices of the model."""
        return Prices(self.usd_per_million_prompt_tokens, self.usd_per_million_completion_tokens)

    @property
    def caps(self) -> Caps:
        """Caps on the whole run."""
        return Caps(max_tokens_total=self.max_tokens_total, max_usd_total=self.max_usd_total)


def most_tokens(prompt: Prompt) -> Tokens:
    """Bound the tokens of a prompt and its answer from above: a token is at least one byte."""
    sent = sum(_n_bytes(message.content) + _TOKENS_AROUND_A_MESSAGE for message in prompt.messages)
    return sent, prompt.sampling.max_tokens


def least_tokens(prompt: Prompt, answer: str = "") -> Tokens:
    """Bound the tokens of a prompt and its answer from below, whatever the server says."""
    sent = sum(_n_bytes(message.content) for message in prompt.messages)
    return sent // _BYTES_A_TOKEN, _n_bytes(answer) // _BYTES_A_TOKEN


def refusal(config: EndpointConfig, spent: Cost, most: Tokens) -> str:
    """Say which cap a request might pass, and what to do.

    Args:
        config: caps and prices.
        spent: what counts towards the caps so far.
        most: the most tokens that the request may take.
    """
    name, so_far, more = "max_tokens_total", f"{spent.tokens} tokens", f"{sum(most)}"
    if config.max_tokens_total is None or spent.tokens + sum(most) <= config.max_tokens_total:
        name, so_far = "max_usd_total", f"{spent.usd:.4f} USD"
        more = f"{config.prices.usd(*most):.4f}"
    return (
        f"{so_far} are spent of {name}={getattr(config, name)}, and the next request to "
        f"{config.model} may take up to {more}. Raise {name} to go on."
    )


def _n_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


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
    def tokens(self) -> Tokens | None:
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
