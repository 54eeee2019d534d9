"""Settings, costs, responses and errors for a chat completions endpoint. Does no I/O."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import takewhile, zip_longest
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from coevo_gym.core.seams import Prompt
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import Caps, Cost, Prices, Tokens
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.tool_calls import OPEN, Call, Malformed, read_hermes, tool_calls_to_hermes

_TOKENS_AROUND_A_MESSAGE = 16
_BYTES_A_TOKEN = 6
"""Upper bound on bytes per token for ordinary text; tokenizers average four or fewer."""
_OVERFLOW_CODES = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW_STATUS = {400, 422, 500}
"""Statuses of overflow errors, in addition to 413: OpenAI, vLLM, SGLang and llama.cpp use 400, TGI
422, older llama.cpp 500."""
_TOO_LARGE = 413
_OVERFLOW_TEXT = re.compile(
    r"maximum (context|prompt) length|longer than the (maximum )?model('s)? (context )?length"
    r"|exceeds? (the )?(available |model's )?(maximum )?context (size|length|window)"
    r"|exceeds? the maximum number of (input )?tokens|context length of only"
    r"|context (size|length|window) exceeded|(prompt|input) is too long|too many tokens"
    r"|exceeded model token limit|more than max tokens allowed"
    r"|max_new_tokens`? must be <=|should not exceed max_num_tokens",
    re.IGNORECASE,
)
_FILTER_STATUS = {400, 403, 422, 451}
_FILTER_TEXT = re.compile(
    r"content[ _]?(filter|(management )?polic)|usage (polic|guideline)|safety_?check"
    r"|data_inspection_failed|inappropriate content|content exists risk|considered high risk"
    r"|moderation|guardrail|flagged|responsible ?ai|敏感",
    re.IGNORECASE,
)


class EndpointConfig(FrozenModel):
    """Settings for using an OpenAI-compatible endpoint."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(default="default", min_length=1)
    """Name of the model on the server."""
    base_url: str = "https://api.openai.com/v1"
    """URL of the API, including ``/v1`` and without a key."""
    api_key_env: str | None = Field(default="OPENAI_API_KEY", min_length=1)
    """Environment variable with the key; a placeholder is sent if the variable is not set."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Request field for the maximum answer length. Newer OpenAI models need
    ``max_completion_tokens``."""
    send_temperature: bool = True
    """Send the temperature with each request. Set this to false for OpenAI's reasoning models,
    which accept only their default temperature. Even greedy evaluations then sample."""
    max_concurrency: int = Field(default=16, ge=1)
    """Maximum number of concurrent requests, and of open episodes in an evaluation."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout in seconds for one attempt, from the first byte sent to the last byte read."""
    max_attempts: int = Field(default=5, ge=1)
    """Maximum number of attempts per request."""
    backoff_base_s: float = Field(default=0.5, gt=0)
    """Maximum wait in seconds before the second attempt, doubled with each further attempt."""
    backoff_cap_s: float = Field(default=30.0, gt=0)
    """Maximum wait in seconds, even if the server asks for a longer wait."""
    usd_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    """Price per million prompt tokens, in US dollars."""
    usd_per_million_completion_tokens: float = Field(default=0.0, ge=0)
    """Price per million completion tokens, including hidden reasoning, in US dollars."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Maximum number of prompt and completion tokens per run, across resumes; None for no cap."""
    max_usd_total: float | None = Field(default=None, gt=0)
    """Maximum cost per run in US dollars, across resumes; None for no cap."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not re.fullmatch(r"https?://[^/@?#]+[^@?#]*", url):
            raise ValueError(
                "must be a URL that begins with http:// or https:// and contains no user name, "
                "key or query, such as http://localhost:8000/v1"
            )
        return url

    @model_validator(mode="after")
    def _require_prices_for_usd_cap(self) -> EndpointConfig:
        if self.max_usd_total is not None and not any(self.prices):
            raise ValueError(
                "max_usd_total has no effect while both prices are 0. In the same section, set "
                "usd_per_million_prompt_tokens and usd_per_million_completion_tokens."
            )
        return self

    @property
    def host(self) -> str:
        """The server that receives the API key, as ``https://host:port``."""
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{url.netloc}"

    @property
    def is_local(self) -> bool:
        """True if the server has a loopback address."""
        name = urlsplit(self.base_url).hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    @property
    def proxy(self) -> str:
        """The proxy set in the environment for this server, as ``NAME=host:port``; "" for none.

        A loopback address is reached without a proxy.
        """
        url = urlsplit(self.base_url)
        if self.is_local or proxy_bypass(url.hostname or ""):
            return ""
        for name in (f"{url.scheme}_proxy", "all_proxy"):
            for variable in (name, name.upper()):
                if value := os.environ.get(variable):
                    return f"{variable}={urlsplit(value).netloc.rpartition('@')[2] or value}"
        return ""

    @property
    def prices(self) -> Prices:
        """The model's token prices."""
        return Prices(self.usd_per_million_prompt_tokens, self.usd_per_million_completion_tokens)

    @property
    def caps(self) -> Caps:
        """The caps on tokens and cost for the whole run."""
        return Caps(max_tokens_total=self.max_tokens_total, max_usd_total=self.max_usd_total)


def max_token_counts(prompt: Prompt) -> Tokens:
    """Return upper bounds on the token counts of a prompt and its answer, at one token per byte."""
    prompt_tokens = sum(
        _n_bytes(message.content) + _TOKENS_AROUND_A_MESSAGE for message in prompt.messages
    )
    return prompt_tokens + _n_bytes(prompt.tools), prompt.sampling.max_tokens


def min_token_counts(prompt: Prompt, answer: str = "") -> Tokens:
    """Return lower bounds on the token counts of a prompt and its answer, valid for any server."""
    prompt_bytes = sum(_n_bytes(message.content) for message in prompt.messages)
    return prompt_bytes // _BYTES_A_TOKEN, _n_bytes(answer) // _BYTES_A_TOKEN


def cap_message(config: EndpointConfig, spent: Cost, most: Tokens, work: str = "") -> str:
    """Return a message that names the cap that another ``most`` tokens might exceed.

    ``work`` is the start of a clause, up to its verb, about the work that needs the tokens; "" for
    the next request.
    """
    work = work or f"the next request to {config.model} may take up to"
    name, so_far, more = "max_tokens_total", f"{spent.tokens} tokens", f"{sum(most)}"
    if config.max_tokens_total is None or spent.tokens + sum(most) <= config.max_tokens_total:
        name, so_far = "max_usd_total", f"{spent.usd:.4f} USD"
        more = f"{config.prices.usd(*most):.4f}"
    return (
        f"{so_far} of {name}={getattr(config, name)} are spent, and {work} {more}. Raise {name} "
        "to continue."
    )


def _n_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def chat_messages(prompt: Prompt, max_chars: int) -> list[dict[str, Any]]:
    """Convert a prompt's messages to the format of a chat completions request.

    Calls in an answer, written in Hermes notation by the policy, become ``tool_calls`` if
    results follow. Servers accept only JSON objects as arguments, so an unreadable call gets {}.

    Args:
        prompt: the prompt.
        max_chars: maximum number of characters of a message.
    """
    messages_out: list[dict[str, Any]] = []
    n_calls = 0
    for place, message in enumerate(prompt.messages):
        content = clean_text(message.content, max_chars)
        if message.role == "tool":
            n_calls += 1
            messages_out.append(
                {"role": "tool", "tool_call_id": f"call_{n_calls}", "content": content}
            )
            continue
        messages_out.append({"role": message.role, "content": content})
        rest = prompt.messages[place + 1 :]
        results = [*takewhile(lambda later: later.role == "tool", rest)]
        if message.role == "assistant" and results:
            calls = read_hermes(message.content)
            messages_out[-1]["content"] = content.partition(OPEN)[0].strip()
            messages_out[-1]["tool_calls"] = [
                _tool_call(f"call_{n_calls + 1 + k}", call)
                for k, (call, _) in enumerate(zip_longest(calls[: len(results)], results))
            ]
    return messages_out


def _tool_call(name: str, call: Call | Malformed | None) -> dict[str, Any]:
    called = call if isinstance(call, Call) else Call("unreadable", {})
    function = {"name": called.name, "arguments": json.dumps(called.arguments)}
    return {"id": name, "type": "function", "function": function}


class _Message(BaseModel):
    content: str | None = None
    tool_calls: Any = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


_TokenCount = Annotated[int, Field(ge=0, le=10**12)]
"""Token count of one request; larger numbers are invalid, and might not even fit a float."""


class _Tokens(BaseModel):
    prompt_tokens: _TokenCount | None = None
    completion_tokens: _TokenCount | None = None


class EndpointReply(BaseModel):
    """A chat completion, reduced to the fields that a policy reads."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None

    @property
    def text(self) -> str:
        """Text of the answer, or "" if it was filtered or contains only reasoning or tool calls."""
        filtered = self.finish_reason == "content_filter"
        return "" if filtered else self.choices[0].message.content or ""

    @property
    def text_with_calls(self) -> str:
        """The text of the answer, followed by its tool calls in Hermes notation."""
        calls = self.choices[0].message.tool_calls
        if not calls or self.finish_reason == "content_filter":
            return self.text
        return "\n".join(filter(None, [self.text, tool_calls_to_hermes(calls)]))

    @property
    def finish_reason(self) -> str | None:
        """Finish reason reported by the server."""
        return self.choices[0].finish_reason

    @property
    def token_counts(self) -> Tokens | None:
        """Prompt and completion token counts; None if the server does not report both."""
        usage = self.usage or _Tokens()
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        return usage.prompt_tokens, usage.completion_tokens


class RefusalBody(NamedTuple):
    """A server's reason for refusing a request.

    Attributes:
        codes: the error's code, type and status; their meaning differs between servers.
        message: the reason as text, or "" if the server gives none.
    """

    codes: tuple[object, ...]
    message: str


def read_refusal(content: bytes) -> RefusalBody:
    """Read the reason for a refusal from a response body, in any of the forms that servers use.

    These are OpenAI's object with ``error``, a list of such objects (Gemini), ``error`` as a string
    (xAI, LM Studio), the same fields without ``error`` (Cohere, SGLang), and plain text.

    Example:
        >>> read_refusal(b'[{"error": {"message": "Too long.", "code": 400}}]')
        RefusalBody(codes=(400,), message='Too long.')
        >>> read_refusal(b'{"code": "invalid", "error": "Too long."}').message
        'Too long.'
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return RefusalBody((), content.decode(errors="replace").strip())
    if isinstance(body, list):
        body = next(iter(body), None)
    outer = body if isinstance(body, dict) else {"error": body}
    error = outer.get("error") or outer
    fields = error if isinstance(error, dict) else {**outer, "message": error}
    codes = tuple(fields[name] for name in ("code", "type", "status") if fields.get(name))
    return RefusalBody(codes, str(fields.get("message") or fields.get("detail") or ""))


def read_reply(content: bytes) -> EndpointReply | None:
    """Parse a response body; return None if it is not a chat completion.

    Lone surrogates, which a model's answer may contain, do not cause an error.
    """
    try:
        return EndpointReply.model_validate(json.loads(content))
    except (ValueError, RecursionError, ValidationError):
        return None


def is_overflow(status: int, refusal: RefusalBody) -> bool:
    """Return True if a refusal means that the prompt does not fit in the model's context.

    Example:
        >>> is_overflow(400, RefusalBody(("context_length_exceeded",), ""))
        True
        >>> is_overflow(400, RefusalBody((), "2285 tokens exceed the context window of 2048"))
        True
        >>> is_overflow(400, RefusalBody((), "temperature must not be negative"))
        False
    """
    if status not in _OVERFLOW_STATUS:
        return status == _TOO_LARGE
    coded = any(code in refusal.codes for code in _OVERFLOW_CODES)
    return coded or bool(_OVERFLOW_TEXT.search(refusal.message))


def is_filtered(status: int, refusal: RefusalBody) -> bool:
    """Return True if a refusal means that a content filter rejected the prompt.

    Example:
        >>> is_filtered(400, RefusalBody(("content_filter",), "The response was filtered."))
        True
        >>> is_filtered(400, RefusalBody((), "temperature must not be negative"))
        False
    """
    if status not in _FILTER_STATUS:
        return False
    return any(_FILTER_TEXT.search(str(text)) for text in (*refusal.codes, refusal.message))


def retry_after_s(header: str | None, now: datetime | None = None) -> float:
    """Return the wait in seconds from a ``Retry-After`` header, or 0 if there is no valid one.

    The header contains seconds or a date (RFC 9110, section 10.2.3).

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
    """Return the seconds to wait after a failed attempt, using exponential back-off with jitter.

    ``min(cap, asked_s + draw * min(cap, base * 2 ** (attempt - 1)))``: up to the cap, the wait is
    never shorter than the server asks for, and simultaneous requests return at different times.
    Attempts are counted from 1, and ``draw`` is uniform in [0, 1).

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
