"""A meter for the cost of model requests, with prices and caps.

A policy reserves its requests' maximum cost, sends as many requests as the caps allow, and then
counts the actual cost:

    >>> meter = Meter(Caps(max_tokens_total=1000))
    >>> with meter.reserve([(700, 200), (700, 200)]) as n:
    ...     meter.count("explore", Usage(calls=n, prompt_tokens=650, completion_tokens=20))
    >>> n, meter.total.tokens
    (1, 670)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from pydantic import Field

from coevo_gym.core.task import FrozenModel

Tokens = tuple[int, int]
"""Token counts of a prompt and of its answer."""


class Usage(FrozenModel):
    """The cost of model requests. Costs can be added with ``+``.

    Attributes:
        calls: requests sent to a model, including retries.
        cached: requests answered from a tape with the model's earlier answer. Their tokens and
            price are counted as if they had been sent.
        prompt_tokens: tokens read, as counted by the model's tokenizer or server.
        completion_tokens: tokens written, including hidden thoughts.
        usd: price in US dollars; 0 for models that run locally.
        seconds: wall time of each batch of requests to an endpoint; for answers from a tape, the
            original time. 0 for models that run locally.
        used: questions whose answer was used unchanged.
        repaired: questions whose answer was used after one request to repair it.
        by_rule: questions without a usable answer, where a rule was used instead.

    Example:
        >>> (Usage(calls=1, prompt_tokens=30) + Usage(calls=2, usd=0.25)).calls
        3
    """

    calls: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    usd: float = Field(default=0.0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    used: int = Field(default=0, ge=0)
    repaired: int = Field(default=0, ge=0)
    by_rule: int = Field(default=0, ge=0)

    def __add__(self, other: Usage) -> Usage:
        fields = type(self).model_fields
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in fields})

    def times(self, n: int) -> Usage:
        """Return the usage multiplied by ``n``."""
        return Usage(**{name: n * value for name, value in self})

    @property
    def requests(self) -> int:
        """The number of requests answered by a model or from recorded answers."""
        return self.calls + self.cached

    @property
    def tokens(self) -> int:
        """The total number of prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def questions(self) -> int:
        """The number of questions asked, whether or not they were answered."""
        return self.used + self.repaired + self.by_rule


ANSWERS = ("used", "repaired", "by_rule")
"""Possible outcomes of a question, as fields of :class:`Usage`."""

NO_USAGE = Usage()

Spent = Callable[[], Mapping[str, Usage]]
"""A function that returns a scope's cost of model requests so far, by purpose."""


class Cost(FrozenModel):
    """The env steps and model costs of a unit of work. Costs can be added with ``+``.

    Attributes:
        env_steps: env steps, including exploration and gate replays.
        requests: model requests, including those answered from a tape.
        tokens: tokens that models read and wrote for these requests.
        usd: total price of these requests in US dollars; unpriced requests count as 0.
    """

    env_steps: int = Field(default=0, ge=0)
    requests: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    usd: float = Field(default=0.0, ge=0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: value + getattr(other, name) for name, value in self})

    def subtract_to_zero(self, other: Cost) -> Cost:
        """Subtract another cost, setting negative fields to 0."""
        return Cost(**{name: max(0, value - getattr(other, name)) for name, value in self})

    @classmethod
    def from_usages(cls, env_steps: int, *usages: Usage) -> Cost:
        """Create a cost from env steps and model usage."""
        return cls(
            env_steps=env_steps,
            requests=sum(usage.requests for usage in usages),
            tokens=sum(usage.tokens for usage in usages),
            usd=sum(usage.usd for usage in usages),
        )


class Prices(NamedTuple):
    """A model's prices, in US dollars per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0

    def usd(self, prompt: int, completion: int) -> float:
        """Return the price of the given numbers of prompt and completion tokens, in US dollars.

        Example:
            >>> Prices(0.5, 2.0).usd(1_000_000, 500_000)
            1.5
        """
        return (prompt * self.prompt + completion * self.completion) / 1e6


FREE = Prices()
"""The prices of a model that runs locally."""


class Caps(FrozenModel):
    """Caps on model requests and their cost.

    A request that might exceed a cap is not sent. Before a request is sent, its prompt is
    counted as one token per byte, and its answer as the maximum answer length. Once the answer has
    arrived, the token counts from the server or tokenizer are used instead.
    """

    max_calls_per_round: int | None = Field(default=None, ge=1)
    """Maximum requests per round, including requests answered from a tape; None for no cap. Retries
    after a server failure are always sent, and each retry counts.
    """
    max_tokens_per_round: int | None = Field(default=None, ge=1)
    """Maximum tokens per round, read and written; None for no cap."""
    max_seconds_per_round: float | None = Field(default=None, gt=0)
    """Seconds of waiting for answers after which a round stops sending batches; None for no cap."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Maximum tokens over the whole run, read and written; None for no cap."""
    max_usd_total: float | None = Field(default=None, gt=0)
    """Maximum cost of the whole run in US dollars, based on endpoint prices; None for no cap."""


def count_allowed(
    requests: Sequence[Tokens],
    *,
    calls: int | None,
    tokens: int | None,
    usd: float | None,
    prices: Prices = FREE,
) -> int:
    """Return the number of requests in a batch that can be sent without exceeding a cap.

    The first request that might exceed a cap and all later requests are not sent, even if a later
    request is small enough. A request is given by the maximum tokens of its prompt and answer. The
    other arguments are the remaining amounts; None for no cap.

    Example:
        >>> count_allowed([(100, 50), (4000, 500), (10, 10)], calls=3, tokens=1000, usd=None)
        1
    """
    prompt = completion = 0
    for number, request in enumerate(requests):
        prompt += request[0]
        completion += request[1]
        if (
            (calls is not None and number >= calls)
            or (tokens is not None and prompt + completion > tokens)
            or (usd is not None and prices.usd(prompt, completion) > usd)
        ):
            return number
    return len(requests)


class Scopes:
    """The stack of named scopes in which the current thread records and counts model queries.

    Scopes are local to a thread: entering a scope does not affect other threads.

    Example:
        >>> scopes = Scopes()
        >>> with scopes("round-3"), scopes("explore-0"):
        ...     scopes.path
        'round-3/explore-0'
        >>> with scopes("round-3"), scopes("round-3/explore-0"):
        ...     scopes.path
        'round-3/explore-0'
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._told: list[Callable[[str], None]] = []

    @property
    def path(self) -> str:
        """The full name of this thread's current scope, or "" outside any scope."""
        path: str = getattr(self._here, "path", "")
        return path

    def on_begin(self, tell: Callable[[str], None]) -> None:
        """Register a function to call with a scope's full name whenever the scope is entered."""
        self._told.append(tell)

    @contextmanager
    def __call__(self, name: str) -> Iterator[str]:
        """Enter a nested scope called ``name`` and yield its full name."""
        before = self.path
        inside = f"{before}/"
        path = name if not before or name.startswith(inside) else inside + name
        for tell in self._told:
            tell(path)
        self._here.path = path
        try:
            yield path
        finally:
            self._here.path = before


class Meter:
    """A meter that tracks model costs by unit of work and purpose, and enforces cost caps.

    A round consists of all work whose name has the same first part. Entering a unit of work again
    resets its cost, because a tape repeats the answers. The caps on the whole run still count the
    earlier cost, and the repeated answers are not counted twice. A round that finished without an
    error has the cost of its units; entering the round again resets all of them.

    The state converts to and from JSON. After loading, the units of an unfinished round start
    again. Threads and event loops may share a meter. A tape shares its meter's scopes.

    Attributes:
        save: called before requests are sent, to store a state that includes them.
    """

    def __init__(self, caps: Caps | None = None, scopes: Scopes | None = None) -> None:
        self.caps = caps or Caps()
        self.scopes = scopes or Scopes()
        self._lock = threading.RLock()
        self._spent: dict[str, dict[str, Usage]] = {}  # by path and purpose
        self._open: set[str] = set()
        self._total = Cost()
        self._forgotten: dict[str, Cost] = {}  # still in the total, but no longer in a round
        self._held: list[tuple[str, Cost]] = []  # by round
        self._waiting: list[Future[None]] = []
        self._waited: dict[str, float] = {}  # seconds, by round
        self.save: Callable[[], None] = lambda: None
        self.scopes.on_begin(self._begin_scope)

    @contextmanager
    def scope(self, name: str) -> Iterator[Spent]:
        """Track model usage in a ``with`` block; yield a function that returns the usage so far."""
        with self.scopes(name) as path:
            yield lambda: self.usage(path)
        if "/" not in path:
            self._close_round(path)

    @property
    def total(self) -> Cost:
        """The cost counted towards the run's caps so far. Env steps are not included."""
        with self._lock:
            return self._total

    @property
    def total_with_reservations(self) -> Cost:
        """The total, plus the maximum cost of requests that have not been counted yet."""
        with self._lock:
            return sum((cost for _, cost in self._held), self._total)

    def usage(self, path: str) -> dict[str, Usage]:
        """Return the model usage in a scope and its nested scopes, by purpose."""
        with self._lock:
            totals: dict[str, Usage] = {}
            for name, purposes in self._spent.items():
                if name == path or name.startswith(f"{path}/"):
                    for purpose, usage in purposes.items():
                        totals[purpose] = totals.get(purpose, NO_USAGE) + usage
            return totals

    def count_round_once(self, round: str, usage: Mapping[str, Usage]) -> None:
        """Add a finished round's stored model usage to the totals. Repeat calls have no effect."""
        with self._lock:
            if round not in self._spent:
                for purpose, cost in usage.items():
                    self._add_cost(round, purpose, cost, Cost.from_usages(0, cost), again=True)

    def state_dict(self, *, include_reservations: bool = False) -> dict[str, Any]:
        """Return the state as JSON.

        Args:
            include_reservations: True to store :attr:`total_with_reservations` as the total, for a
                process that may be killed before it can count its requests.
        """
        with self._lock:
            forgotten = dict(self._forgotten)
            for path, purposes in self._spent.items():
                if (round := _round_of(path)) in self._open:
                    forgotten[round] = forgotten.get(round, Cost()) + Cost.from_usages(
                        0, *purposes.values()
                    )
            spent = {
                path: {purpose: usage.model_dump() for purpose, usage in purposes.items()}
                for path, purposes in self._spent.items()
                if _round_of(path) not in self._open
            }
            return {
                "spent": spent,
                "total": _to_json(
                    self.total_with_reservations if include_reservations else self._total
                ),
                "forgotten": {round: _to_json(cost) for round, cost in forgotten.items()},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by :meth:`state_dict`."""
        with self._lock:
            self._spent = {
                path: {purpose: Usage(**usage) for purpose, usage in purposes.items()}
                for path, purposes in state["spent"].items()
            }
            self._total = _from_json(state["total"])
            self._forgotten = {
                round: _from_json(cost) for round, cost in state["forgotten"].items()
            }
            self._open = set()

    @contextmanager
    def reserve(self, requests: Sequence[Tokens], prices: Prices = FREE) -> Iterator[int]:
        """Reserve budget for as many requests as the caps allow, and yield the number of requests.

        Each request reserves its maximum cost. If the caps are reached only because of requests in
        flight, wait until one of these is counted: only actual costs cause a request to be
        rejected.
        """
        while isinstance(reservation := self._try_to_reserve(requests, prices), Future):
            reservation.result()
        with self._release_on_exit(reservation) as n:
            if n:
                self.save()
            yield n

    @asynccontextmanager
    async def reserve_async(
        self, requests: Sequence[Tokens], prices: Prices = FREE
    ) -> AsyncIterator[int]:
        """Reserve budget as :meth:`reserve` does, but without blocking the event loop."""
        while isinstance(reservation := self._try_to_reserve(requests, prices), Future):
            await asyncio.wrap_future(reservation)
        with self._release_on_exit(reservation) as n:
            if n:
                self.save()
            yield n

    def count(self, purpose: str, usage: Usage, capped: Usage | None = None) -> None:
        """Record model usage in this thread's current scope.

        ``capped`` counts towards the caps on the whole run, if it differs from ``usage``.
        """
        with self._lock:
            cost = Cost.from_usages(0, usage if capped is None else capped)
            self._add_cost(self.scopes.path, purpose, usage, cost, again=usage.cached > 0)

    def _try_to_reserve(
        self, requests: Sequence[Tokens], prices: Prices
    ) -> tuple[str, Cost] | Future[None]:
        """Reserve budget for as many requests as the caps allow.

        Returns:
            The round and the reserved cost; or, if other requests must be counted first, a future
            that completes when one of them has been counted.
        """
        path = self.scopes.path
        with self._lock:
            n = self._count_within_caps(path, requests, prices)
            if not n and self._held:
                self._waiting.append(Future())
                return self._waiting[-1]
            prompt, completion = (sum(most[part] for most in requests[:n]) for part in (0, 1))
            usd = prices.usd(prompt, completion)
            reservation = _round_of(path), Cost(requests=n, tokens=prompt + completion, usd=usd)
            self._held.append(reservation)
            return reservation

    @contextmanager
    def _release_on_exit(self, reservation: tuple[str, Cost]) -> Iterator[int]:
        """Yield the number of reserved requests; release the reservation after the ``with`` block.

        The duration of the block counts as time that the round has waited.
        """
        begun = time.perf_counter()
        try:
            yield reservation[1].requests
        finally:
            with self._lock:
                waited = self._waited.get(reservation[0], 0.0) + time.perf_counter() - begun
                self._waited[reservation[0]] = waited
                self._held.remove(reservation)
                waiting, self._waiting = self._waiting, []
            for future in waiting:
                if future.set_running_or_notify_cancel():  # False if the waiter was cancelled
                    future.set_result(None)

    def _count_within_caps(self, path: str, requests: Sequence[Tokens], prices: Prices) -> int:
        caps, round = self.caps, _round_of(path)
        usages = [
            u for name, p in self._spent.items() if _round_of(name) == round for u in p.values()
        ]
        duration = sum(
            usage.seconds for usage in usages
        )  # includes the original time of tape answers
        seconds = max(duration, self._waited.get(round, 0.0))
        if caps.max_seconds_per_round is not None and seconds >= caps.max_seconds_per_round:
            return 0
        here = sum(
            (cost for name, cost in self._held if name == round), Cost.from_usages(0, *usages)
        )
        total = self.total_with_reservations
        tokens = [
            cap - spent
            for cap, spent in (
                (caps.max_tokens_per_round, here.tokens),
                (caps.max_tokens_total, total.tokens),
            )
            if cap is not None
        ]
        calls, usd = caps.max_calls_per_round, caps.max_usd_total
        return count_allowed(
            requests,
            calls=None if calls is None else calls - here.requests,
            tokens=min(tokens, default=None),
            usd=None if usd is None else usd - total.usd,
            prices=prices,
        )

    def _add_cost(self, path: str, purpose: str, usage: Usage, cost: Cost, *, again: bool) -> None:
        """Add a cost to the totals. If ``again``, leave out the part counted before a reset."""
        purposes = self._spent.setdefault(path, {})
        purposes[purpose] = purposes.get(purpose, NO_USAGE) + usage
        if again and (before := self._forgotten.get(round := _round_of(path))):
            self._forgotten[round] = before.subtract_to_zero(cost)
            cost = cost.subtract_to_zero(before)
        self._total += cost

    def _begin_scope(self, path: str) -> None:
        """Open the round of a scope, and set aside the cost of an earlier attempt at the scope."""
        with self._lock:
            round = _round_of(path)
            self._open.add(round)
            cost = Cost.from_usages(0, *self._spent.pop(path, {}).values())
            self._forgotten[round] = self._forgotten.get(round, Cost()) + cost

    def _close_round(self, round: str) -> None:
        with self._lock:
            whole = self.usage(round)
            for path in [path for path in self._spent if _round_of(path) == round]:
                del self._spent[path]
            self._spent[round] = whole
            self._forgotten.pop(round, None)
            self._waited.pop(round, None)
            self._open.discard(round)


def _round_of(path: str) -> str:
    return path.partition("/")[0]


def _to_json(cost: Cost) -> list[float]:
    return [cost.requests, cost.tokens, cost.usd]


def _from_json(state: Sequence[Any]) -> Cost:
    return Cost(requests=state[0], tokens=state[1], usd=state[2])
