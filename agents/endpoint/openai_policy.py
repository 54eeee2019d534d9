"""A policy that queries any server with an OpenAI-compatible chat completions API."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import SecretStr

from coevo_gym.agents.endpoint.endpoint import (
    EndpointConfig,
    EndpointReply,
    cap_message,
    chat_messages,
    is_filtered,
    is_overflow,
    max_token_counts,
    min_token_counts,
    read_refusal,
    read_reply,
    retry_after_s,
    retry_delay_s,
)
from coevo_gym.agents.endpoint.loop_thread import LoopThread, UnreadableAnswer, make_bounded_client
from coevo_gym.core.errors import BudgetSpent, ConfigError, ModelError, RateLimited, StoreError
from coevo_gym.core.seams import Completion, Finish, Prompt, Request
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE, Cost, Meter, Tokens, Usage
from coevo_gym.store.folder import read_json, write_json

__all__ = ["EndpointConfig", "OpenAIPolicy"]

logger = logging.getLogger(__name__)

_NO_KEY = "no-key"
_MAX_CHARS = 4_000_000
_QUOTED_CHARS = 400
_MAX_LOST_IN_A_ROW = 16
"""Number of consecutive unanswered requests after which the server counts as down."""
_RETRIED = frozenset({408, 409, 425, 429})
"""HTTP statuses below 500 that may be temporary."""
_OF_THE_REQUEST = frozenset({400, 422})
"""HTTP statuses for which the server may refuse one request and answer others."""
_COUNTS = ("retries", "unknown", "empty", "cut", "overflows", "refused", "lost")


class _Fault(NamedTuple):
    """A failed attempt, with its cause and a suggested fix."""

    what: str  # without the key
    advice: str
    retry: bool = False  # another attempt may succeed
    wait_s: float = 0.0  # seconds that the server asks to wait
    limited: bool = False  # the server is out of capacity, or the account out of credit
    sent: bool = True  # the server may have processed the prompt and charge for it
    alone: bool = False  # the server may answer other requests
    filtered: bool = False  # a content filter rejected the prompt


class OpenAIPolicy:
    """A policy that queries an OpenAI-compatible endpoint and cannot be trained.

    If a prompt has tools, they are sent with it, and the ``tool_calls`` of the answer are appended
    to its text in Hermes notation. Calls in earlier answers become ``tool_calls`` again.

    Requests run concurrently, up to ``max_concurrency`` across calls; answers are returned in the
    order of the requests. Only transport faults, timeouts, 408, 409, 425, 429, 5xx and responses
    that are not chat completions are retried. Bad output is data: an empty, filtered or truncated
    answer is a completion, and a prompt that does not fit finishes with ``OVERFLOW``. Without
    ``send_temperature``, the server chooses how to sample, even for greedy requests. A reasoning
    model's output outside ``content`` is ignored.

    A prompt that a content filter rejects finishes with ``REFUSED``. A request without an answer
    after all attempts, or rejected for another reason (400, 422), is lost (``Finish.LOST``). Both
    affect only the episode that sent the request. The whole call fails if more attempts cannot
    help: if the server rejects every request, has never answered, or has left 16 requests in a row
    unanswered. Requests in flight are then awaited and counted, unsent requests are not sent, and
    the first error is raised. Connections are kept until :meth:`close`. Thread-safe, even in
    threads with a running event loop.

    Caps do not rely on the server's own counts. An answer counts as at least one token per six
    bytes of prompt and text. If the server reports no usage, the maximum possible usage is counted.
    A prompt without an answer counts as sent. A request that was cancelled, or in flight when the
    process was killed, counts as its maximum.

    Args:
        config: settings of the endpoint. The key is read from the environment here, and never
            appears in an error, log, repr or state.

    Attributes:
        counts: number of requests sent again (``retries``), answers without reported usage
            (``unknown``), answers without text (``empty``), answers cut off at the token limit
            (``cut``), prompts that did not fit into the model's context (``overflows``), prompts
            rejected by a content filter (``refused``), and other requests without an answer after
            all attempts (``lost``).
        unused: largest difference so far between the upper bound of a request and its usage.

    Raises:
        ConfigError: if the environment variable contains an invalid key, or a key would leave this
            machine without encryption.
        ImportError: if the OpenAI client is not installed.
    """

    def __init__(self, config: EndpointConfig) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise ImportError(
                "An endpoint needs the OpenAI client. Run `pip install 'openai>=2'`."
            ) from error
        self.config = config
        self._openai = openai
        self._key = SecretStr(_read_key(config.api_key_env))
        if self._key and not (config.is_local or config.base_url.startswith("https:")):
            raise ConfigError(
                f"The key in {config.api_key_env} would be sent to {config.host} without "
                "encryption. Use https, reach the server through a tunnel to this machine, or set "
                'api_key_env = "none" if the server needs no key.'
            )
        self._client = openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._key.get_secret_value() or _NO_KEY,
            max_retries=0,
            timeout=None,
            http_client=make_bounded_client(openai, direct=config.host if config.is_local else ""),
        )
        self._meter = Meter(config.caps)
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._jitter = np.random.default_rng()
        self._told: set[str] = set()
        self.unused = NO_USAGE
        self._lost_in_a_row: int | None = None  # None: the server has never answered
        self._in_flight = self._rejected = 0  # requests, and how many of them wait for another
        self._ended = asyncio.Condition()
        self._loop = LoopThread(self._client.close)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer prompts, ignoring the token ids of their messages.

        Usage is the server's own count, or the maximum possible usage if the server reports none.

        Raises:
            ConfigError: if a request is not a prompt.
            RateLimited: if the server is out of capacity, or the account is out of credit.
            BudgetSpent: if each request might exceed a cap; none was sent. If others were answered,
                a request that was not sent finishes with ``CAPPED``.
            ModelError: if the server rejects a request or is down, or the policy is closed or was
                created before a fork.
        """
        return self.generate_each(requests, lambda place, completion: None)

    def generate_each(
        self, requests: Sequence[Request], done: Callable[[int, Completion], None]
    ) -> list[Completion]:
        """Answer prompts as in :meth:`generate`, and report each answer as soon as it arrives.

        ``done`` is called with the index of a request and its answer, one call at a time, in a
        thread of the policy. An exception in it fails the whole call. It is not called for requests
        that were not sent.
        """
        prompts = [_require_prompt(request) for request in requests]
        if not prompts:
            return []
        if self._loop.is_forked:
            raise ModelError(
                f"{self!r} was created before this process was forked, and cannot send requests "
                "here. Create the policy in the process that uses it."
            )
        try:
            return self._loop.run(self._answer_all(prompts, done))
        except CancelledError:
            raise ModelError(f"{self!r} is closed. Create a new policy.") from None

    @property
    def usage(self) -> Usage:
        """Usage so far, as counted by the server.

        Includes usage restored by :meth:`load_state_dict` and every attempt, but not answers for
        which the server reported no usage.
        """
        return self._meter.usage("").get("", NO_USAGE)

    @property
    def cost_towards_caps(self) -> Cost:
        """Cost counted towards the caps: at least the cost of the text sent and received."""
        return self._meter.total

    def has_room(self, cost: Cost) -> bool:
        """Return True if the caps leave room for this cost on top of all requests in flight."""
        spent, caps = self._meter.total_with_reservations, self.config.caps
        tokens, usd = caps.max_tokens_total, caps.max_usd_total
        return (tokens is None or spent.tokens + cost.tokens <= tokens) and (
            usd is None or spent.usd + cost.usd <= usd
        )

    def describe_usage(self) -> str:
        """Describe the requests so far and their cost in one line."""
        usage, counts = self.usage, self.counts
        priced = usage.usd or any(self.config.prices)
        return (
            f"{usage.calls:,} requests, {counts['retries']:,} of them sent again, "
            f"{counts['lost']:,} lost; {usage.prompt_tokens:,} tokens sent and "
            f"{usage.completion_tokens:,} answered, "
            + (f"{usage.usd:.4f} USD" if priced else "price not set")
        )

    def sync_counts_with(self, file: Path) -> None:
        """Load the counts from a file, and save them there before each request.

        The counts then survive even a killed process, so the caps apply to all processes that use
        the file, one after another.

        Args:
            file: the file; created with the first request if it is missing.

        Raises:
            StoreError: if the file is damaged.
        """
        if file.exists():
            try:
                self.load_state_dict(read_json(file))
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{file}, which counts the requests and their cost, is damaged: {error}. "
                    "Restore it, or start over with --overwrite."
                ) from error

        def save() -> None:
            write_json(
                file, self._counts_to_json(self._meter.total_with_reservations), synced=False
            )

        self._meter.save = save

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as JSON, so that a resumed run can continue counting."""
        return self._counts_to_json(self.cost_towards_caps)

    def _counts_to_json(self, capped: Cost) -> dict[str, Any]:
        usage = self.usage
        return {
            **{name: self.counts[name] for name in _COUNTS},
            "requests": usage.calls,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.usd,
            "capped_tokens": capped.tokens,
            "capped_usd": capped.usd,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        usage = Usage(
            calls=state["requests"],
            prompt_tokens=state["prompt_tokens"],
            completion_tokens=state["completion_tokens"],
            usd=state["cost_usd"],
        )
        total = [usage.calls, state["capped_tokens"], state["capped_usd"]]
        spent = {"": {"": usage.model_dump()}}
        self._meter.load_state_dict({"spent": spent, "total": total, "forgotten": {}})
        self.counts = Counter({name: state[name] for name in _COUNTS})

    def close(self) -> None:
        """Cancel requests in flight and close the connections. Further calls do nothing.

        Nothing happens in a forked process, because the policy belongs to its parent.
        """
        if not self._loop.is_forked:
            self._loop.close()
            self._meter.save()

    def __enter__(self) -> OpenAIPolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"OpenAIPolicy({self.config.model} at {self.config.base_url})"

    async def _answer_all(
        self, prompts: Sequence[Prompt], done: Callable[[int, Completion], None]
    ) -> list[Completion]:
        failed = asyncio.Event()
        begun = time.perf_counter()

        async def answer_and_report(place: int, prompt: Prompt) -> Completion | None:
            nonlocal begun
            completion = await self._answer(prompt, failed)
            if completion is not None and completion.finish is not Finish.CAPPED:
                # Measured since the previous answer, so the sum is the time of the batch.
                begun, since = time.perf_counter(), begun
                usage = completion.usage.model_copy(update={"seconds": begun - since})
                completion = completion._replace(usage=usage)
                try:
                    done(place, completion)
                except Exception:
                    failed.set()
                    raise
            return completion

        answers = await asyncio.gather(
            *(answer_and_report(place, prompt) for place, prompt in enumerate(prompts)),
            return_exceptions=True,
        )
        completions = [answer for answer in answers if isinstance(answer, Completion)]
        for answer in answers:
            if isinstance(answer, BaseException):
                if len(prompts) > 1:
                    answer.add_note(
                        f"{len(completions)} of the {len(prompts)} requests of this call were "
                        "answered and counted; no answer is returned."
                    )
                raise answer
        if all(completion.finish is Finish.CAPPED for completion in completions):
            raise BudgetSpent(completions[0].text)
        return completions

    async def _answer(self, prompt: Prompt, failed: asyncio.Event) -> Completion | None:
        """Answer a prompt; return None if another request in the same call failed first."""
        try:
            most = max_token_counts(prompt)
            async with self._slots, self._meter.reserve_async([most], self.config.prices) as n:
                if not n:
                    return Completion(
                        cap_message(self.config, self.cost_towards_caps, most), None, Finish.CAPPED
                    )
                self._in_flight += 1
                began = time.monotonic()
                try:
                    answer = await self._try_until_answered(prompt, failed)
                finally:
                    self._in_flight -= 1
                    async with self._ended:
                        self._ended.notify_all()
            if answer is not None and (used := answer.usage).tokens:
                unused = most[0] - used.prompt_tokens, most[1] - used.completion_tokens
                if sum(unused) > self.unused.tokens and min(unused) >= 0:
                    self.unused = self._priced_usage(unused)
                answer = answer._replace(seconds=time.monotonic() - began)
            return answer
        except Exception:
            failed.set()
            raise

    async def _try_until_answered(self, prompt: Prompt, failed: asyncio.Event) -> Completion | None:
        attempt = 0
        while not failed.is_set():
            outcome = await self._send_once(prompt)
            attempt += 1
            self._meter.count("", Usage(calls=1))
            self.counts["retries"] += attempt > 1
            if isinstance(outcome, EndpointReply):
                outcome = self._count_and_convert(prompt, outcome)
            if isinstance(outcome, Completion):
                self._lost_in_a_row = 0
                return outcome._replace(usage=outcome.usage + Usage(calls=attempt))
            if outcome.sent:
                self._meter.count("", NO_USAGE, self._priced_usage(min_token_counts(prompt)))
            if not outcome.retry or attempt == self.config.max_attempts:
                if outcome.alone and not outcome.filtered and self._lost_in_a_row is None:
                    await self._wait_for_other_answer()
                return self._give_up(outcome, attempt)
            wait_s = retry_delay_s(self.config, attempt, outcome.wait_s, self._jitter.random())
            logger.info(
                "retry model=%s attempt=%d wait_s=%.3f fault=%s",
                self.config.model, attempt + 1, wait_s, outcome.what,
            )  # fmt: skip
            await _wait_at_most(failed, wait_s)
        return None

    def _give_up(self, fault: _Fault, attempts: int) -> Completion:
        """Return a completion marked as lost, or raise an error if the whole call must fail."""
        times = f" {attempts} times" if attempts > 1 else ""
        message = (
            f"{self.config.model} at {self.config.base_url} gave no answer{times}: "
            f"{fault.what.rstrip('. ')}. {fault.advice}"
        )
        if proxy := self.config.proxy:
            message += (
                f" Requests go through the proxy {proxy}; NO_PROXY lists servers without one."
            )
        in_a_row = 1 + (self._lost_in_a_row or 0)
        works = self._lost_in_a_row is not None or fault.filtered
        if not (fault.retry or fault.alone) or not works or in_a_row >= _MAX_LOST_IN_A_ROW:
            raise (RateLimited if fault.limited else ModelError)(message)
        self._lost_in_a_row = in_a_row
        self.counts["refused" if fault.filtered else "lost"] += 1
        if fault.alone:
            self._warn_once("refused model=%s said=%s", self.config.model, fault.what)
        finish = Finish.REFUSED if fault.filtered else Finish.LOST
        return Completion(message, None, finish, Usage(calls=attempts))

    async def _wait_for_other_answer(self) -> None:
        """Wait until another request is answered or no request in flight can succeed any more."""
        self._rejected += 1
        async with self._ended:
            self._ended.notify_all()
            await self._ended.wait_for(
                lambda: self._lost_in_a_row is not None or self._rejected == self._in_flight
            )
        self._rejected -= 1

    async def _send_once(self, prompt: Prompt) -> EndpointReply | Completion | _Fault:
        """Send a prompt once; faults are returned, because exceptions might reveal the key."""
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": chat_messages(prompt, _MAX_CHARS),
            self.config.max_tokens_field: prompt.sampling.max_tokens,
        }
        if prompt.tools:
            body["tools"] = json.loads(prompt.tools)
        if self.config.send_temperature:
            body["temperature"] = prompt.sampling.temperature
        try:
            async with asyncio.timeout(self.config.timeout_s):
                raw = await self._client.chat.completions.with_raw_response.create(**body)
        except asyncio.CancelledError:  # the server may finish the answer and charge for it
            self._meter.count("", NO_USAGE, self._priced_usage(max_token_counts(prompt)))
            raise
        except TimeoutError:
            return _Fault(
                f"no answer within timeout_s={self.config.timeout_s:g}.",
                "Raise timeout_s, or lower max_concurrency.",
                retry=True,
            )
        except self._openai.APIStatusError as error:
            return self._convert_status_error(error)
        except Exception as error:
            # openai 2 wraps all exceptions of its HTTP client, openai 3 only some.
            cause = error.__cause__ or error
            if isinstance(cause, UnreadableAnswer):
                return _Fault(
                    f"{cause}.",
                    "Check that base_url points to an OpenAI-compatible API, and that no proxy "
                    "compresses its answers.",
                    retry=True,
                )
            return _Fault(
                f"{type(cause).__name__}: {self._quote(str(cause)).rstrip('. ')}.",
                "Check that the server runs and that base_url is right.",
                retry=True,
                sent=not _is_connection_failure(error),
            )
        reply = read_reply(raw.content)
        if reply is None and is_overflow(400, read_refusal(raw.content)):
            return self._record_overflow(raw.status_code, raw.text)
        return reply or _Fault(
            f"its response is not a chat completion: {self._quote(raw.text)!r}.",
            "Check that base_url points to an OpenAI-compatible API; it often ends in /v1.",
            retry=True,
        )

    def _convert_status_error(self, error: Any) -> Completion | _Fault:
        """Convert an ``openai.APIStatusError`` to a completion or a fault."""
        status, details = error.status_code, read_refusal(error.response.content)
        message = details.message or str(error)
        if is_overflow(status, details):
            return self._record_overflow(status, message)
        filtered = is_filtered(status, details)
        return _Fault(
            f"status {status}, {self._quote(message).rstrip('. ')}.",
            self._advice(status, message),
            # An account without credit also gets status 429, but waiting does not help.
            retry=(status >= 500 or status in _RETRIED)
            and "insufficient_quota" not in details.codes,
            wait_s=retry_after_s(error.response.headers.get("retry-after")),
            limited=status == 429,
            sent=False,
            alone=filtered or status in _OF_THE_REQUEST,
            filtered=filtered,
        )

    def _record_overflow(self, status: int, message: str) -> Completion:
        """Return an empty completion for a prompt that exceeds the model's context length."""
        quote = self._quote(message)
        self.counts["overflows"] += 1
        self._warn_once("overflow model=%s status=%d said=%s", self.config.model, status, quote)
        return Completion("", None, Finish.OVERFLOW)

    def _advice(self, status: int, message: str) -> str:
        if status in (401, 403):
            name = self.config.api_key_env
            if name is None:
                return "Set api_key_env to the name of the variable that contains the key."
            return f"Set {name} to a key that may use this model."
        if status == 404:
            return "Check base_url and model; GET base_url/models lists the available models."
        if status == 429:
            return "Lower max_concurrency, raise max_attempts or backoff_cap_s, or add credit."
        if status >= 500 or status in _RETRIED:
            return "Check the server's log, or raise max_attempts."
        if self.config.send_temperature and "temperature" in message.lower():
            return "Set send_temperature to false for a model with a fixed temperature."
        return "Check that the server supports model, max_tokens_field and the sampling settings."

    def _count_and_convert(self, prompt: Prompt, reply: EndpointReply) -> Completion:
        """Count an answer's token usage and convert the answer to a completion."""
        tokens, most = reply.token_counts, max_token_counts(prompt)
        answer = reply.text_with_calls if prompt.tools else reply.text
        if tokens is None:
            self.counts["unknown"] += 1
            self._meter.count("", NO_USAGE, self._priced_usage(most))
            self._warn_once(
                "no usage reported, so tokens are unknown and caps count the maximum: model=%s",
                self.config.model,
            )
        else:
            least = min_token_counts(prompt, answer)
            capped = max(tokens[0], least[0]), max(tokens[1], least[1])
            self._meter.count("", self._priced_usage(tokens), self._priced_usage(capped))
        text = clean_text(self._without_key(answer), _MAX_CHARS)
        self.counts["empty"] += not text
        finish = Finish.LENGTH if reply.finish_reason == "length" else Finish.STOP
        self.counts["cut"] += finish is Finish.LENGTH
        return Completion(text, None, finish, self._priced_usage(tokens or most))

    def _priced_usage(self, tokens: Tokens) -> Usage:
        """Return the usage and price for the given token counts."""
        usd = self.config.prices.usd(*tokens)
        return Usage(prompt_tokens=tokens[0], completion_tokens=tokens[1], usd=usd)

    def _quote(self, text: str) -> str:
        """Shorten a server's error message and remove the API key from it."""
        return clean_text(self._without_key(text), _QUOTED_CHARS)

    def _without_key(self, text: str) -> str:
        key = self._key.get_secret_value()
        return text.replace(key, "***") if key else text

    def _warn_once(self, text: str, *values: object) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text, *values)


def _read_key(name: str | None) -> str:
    """Read the API key from the environment; return "" if there is none.

    Raises:
        ConfigError: if the key is not a valid HTTP header; the client's error would quote it.
    """
    key = os.environ.get(name, "").strip() if name else ""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"The environment variable {name} contains whitespace, control or non-ASCII "
            "characters, so its value is not a valid API key. Set the variable to the key alone."
        )
    return key


def _require_prompt(request: Request) -> Prompt:
    if not isinstance(request, Prompt):
        raise ConfigError(
            f"An endpoint needs a Prompt, got {type(request).__name__}. Use a ChatAgent."
        )
    if request.after is not None:
        raise ConfigError(
            "An endpoint accepts only messages, so it cannot continue from token ids. Use a model "
            "that runs in this process (policy.kind = 'transformers' or 'vllm')."
        )
    return request


def _is_connection_failure(error: BaseException | None) -> bool:
    """Return True if a transport error means that no connection was made."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait at most ``seconds`` for an event."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
