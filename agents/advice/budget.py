"""What asking models may cost: caps that no request is sent beyond."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pydantic import Field

from coevo_gym.agents.advice.scopes import Scopes
from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.inquiry import Spent
from coevo_gym.core.notes import NO_USAGE, Usage
from coevo_gym.core.seams import Completion, Finish, Policy, Prompt, Request
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import TokenDecision

_TOKENS_AROUND_A_CHAT = 64
"""More than what chat templates put around a chat, a system text of their own included."""
_TOKENS_AROUND_A_MESSAGE = 16
_UNSENT = Completion("", None, Finish.UNSENT)


class AdvisorConfig(FrozenModel):
    """What models may be asked in rounds of evolution, and what that may cost.

    No request is sent that might pass a cap: before, its prompt counts one token a byte and its
    answer all that it may have; afterwards it counts as what the server or the tokenizer says.
    """

    max_calls_per_round: int | None = Field(default=None, ge=1)
    """Most requests in a round, those that a tape answers included; None for no cap. One that is on
    its way when a server fails is sent again even so, and counts each time."""
    max_tokens_per_round: int | None = Field(default=None, ge=1)
    """Most tokens in a round, read and written; None for no cap."""
    max_seconds_per_round: float | None = Field(default=None, gt=0)
    """So many seconds of waiting for answers, and a round sends no further batch; None for no
    cap."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Most tokens over the whole life of a run, read and written; None for no cap."""
    max_usd_total: float | None = Field(default=None, gt=0)
    """Most money over the whole life of a run, in US dollars; None for no cap. It needs the
    endpoint's prices."""


class Prices(NamedTuple):
    """What a model costs, in US dollars a million tokens."""

    prompt: float = 0.0
    completion: float = 0.0


FREE = Prices()
"""The prices of a model that runs here."""


class Most(NamedTuple):
    """The most tokens that a request can be: of its prompt and of its answer."""

    prompt: int
    completion: int


def allow(
    requests: Sequence[tuple[int, int]],
    *,
    calls: int | None,
    tokens: int | None,
    usd: float | None,
    prices: Prices = FREE,
) -> int:
    """How many requests of a batch may be sent, counted from its beginning.

    The first that might pass a cap is not sent, nor is any after it: order decides, and what came
    later and happens to be small gains nothing by it.

    Args:
        requests: most tokens of the prompt and of the answer of each.
        calls: requests that are left; None for no cap.
        tokens: tokens that are left; None for no cap.
        usd: US dollars that are left; None for no cap.
        prices: of the model.

    Example:
        >>> allow([(100, 50), (4000, 500), (10, 10)], calls=3, tokens=1000, usd=None)
        1
    """
    prompt = completion = 0
    for number, request in enumerate(requests):
        prompt += request[0]
        completion += request[1]
        price = (prompt * prices.prompt + completion * prices.completion) / 1e6
        if (
            (calls is not None and number >= calls)
            or (tokens is not None and prompt + completion > tokens)
            or (usd is not None and price > usd)
        ):
            return number
    return len(requests)


def most_tokens(request: Request) -> Most:
    """An upper bound of what a request takes: a token is at least one byte of UTF-8."""
    if not isinstance(request, Prompt):
        return Most(0, 0)
    contents = sum(
        len(message.content.encode(errors="replace")) + len(message.ids)
        for message in request.messages
    )
    around = _TOKENS_AROUND_A_CHAT + _TOKENS_AROUND_A_MESSAGE * len(request.messages)
    return Most(contents + around, request.sampling.max_tokens)


class _Sum(NamedTuple):
    """What caps are on."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def plus(self, other: _Sum) -> _Sum:
        return _Sum(self.calls + other.calls, self.tokens + other.tokens, self.usd + other.usd)

    def less(self, other: _Sum) -> _Sum:
        return _Sum(self.calls - other.calls, self.tokens - other.tokens, self.usd - other.usd)

    def at_most(self, other: _Sum) -> _Sum:
        return _Sum(
            min(self.calls, other.calls), min(self.tokens, other.tokens), min(self.usd, other.usd)
        )


class Budget:
    """Counts what asking models has cost, by piece of work and purpose, against the caps.

    A round is all work whose name has the same first part. Entering the name of a piece anew
    forgets what it had cost, since a tape gives its answers again; for the caps on the whole run
    that is not forgotten, and what the tape then gives is not counted a second time. A round that
    was left without an error has cost what its pieces have, and entering it anew forgets them all.

    Its state goes to JSON and back. Pieces of a round that is not over are begun anew then.

    Args:
        config: the caps.
        scopes: which piece of work each thread is at; a tape beside it should have the same.
    """

    def __init__(self, config: AdvisorConfig | None = None, scopes: Scopes | None = None) -> None:
        self.config = config or AdvisorConfig()
        self.scopes = scopes or Scopes()
        self._changed = threading.Condition(threading.RLock())
        self._spent: dict[str, dict[str, Usage]] = {}  # by path and purpose
        self._open: set[str] = set()
        self._total = _Sum()
        self._forgotten: dict[str, _Sum] = {}  # in the total, and not in a round any more
        self._held: list[tuple[str, _Sum]] = []
        self._waited: dict[str, float] = {}  # seconds, by round
        self.scopes.on_begin(self._begin)

    @contextmanager
    def scope(self, name: str) -> Iterator[Spent]:
        """Enter a piece of work; what it gives says, inside of it, what that has cost so far."""
        with self.scopes(name) as path:
            yield lambda: self.usage(path)
        if "/" not in path:
            self._close(path)

    @property
    def total(self) -> _Sum:
        """Requests, tokens and US dollars of all work so far."""
        with self._changed:
            return self._total

    def usage(self, path: str) -> dict[str, Usage]:
        """What a piece of work has cost, those inside of it included, by purpose."""
        with self._changed:
            found: dict[str, Usage] = {}
            for name, purposes in self._spent.items():
                if name == path or name.startswith(f"{path}/"):
                    for purpose, usage in purposes.items():
                        found[purpose] = found.get(purpose, NO_USAGE) + usage
            return found

    def counted(self, round: str, usage: Mapping[str, Usage]) -> None:
        """Count a round whose result is known from before, so that it is not done again.

        One that is counted already is not counted twice.
        """
        with self._changed:
            if round not in self._spent:
                for purpose, cost in usage.items():
                    self._add(round, purpose, cost, again=True)

    def state_dict(self) -> dict[str, Any]:
        """What was spent, as JSON."""
        with self._changed:
            forgotten = dict(self._forgotten)
            for path, purposes in self._spent.items():
                if (round := _round(path)) in self._open:
                    cost = _sum(purposes.values())
                    forgotten[round] = forgotten.get(round, _Sum()).plus(cost)
            spent = {
                path: {purpose: usage.model_dump() for purpose, usage in purposes.items()}
                for path, purposes in self._spent.items()
                if _round(path) not in self._open
            }
            return {
                "spent": spent,
                "total": list(self._total),
                "forgotten": {round: list(cost) for round, cost in forgotten.items()},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        with self._changed:
            self._spent = {
                path: {purpose: Usage(**usage) for purpose, usage in purposes.items()}
                for path, purposes in state["spent"].items()
            }
            self._total = _Sum(*state["total"])
            self._forgotten = {round: _Sum(*cost) for round, cost in state["forgotten"].items()}
            self._open = set()

    @contextmanager
    def hold(self, requests: Sequence[Most], prices: Prices) -> Iterator[int]:
        """Reserve what requests may take until they are counted; gives how many may be sent.

        Where the caps leave no room beside what other threads have in flight, it waits until that
        is counted: only what was truly spent refuses a request.
        """
        path = self.scopes.path
        with self._changed:
            self._changed.wait_for(
                lambda: not self._held or self._allowed(path, requests, prices) > 0
            )
            n = self._allowed(path, requests, prices)
            tokens = sum(map(sum, requests[:n]))
            usd = sum(most.prompt * prices.prompt for most in requests[:n])
            usd += sum(most.completion * prices.completion for most in requests[:n])
            held = (_round(path), _Sum(n, tokens, usd / 1e6))
            self._held.append(held)
        begun = time.perf_counter()
        try:
            yield n
        finally:
            with self._changed:
                waited = self._waited.get(held[0], 0.0) + time.perf_counter() - begun
                self._waited[held[0]] = waited
                self._held.remove(held)
                self._changed.notify_all()

    def count(self, purpose: str, usage: Usage) -> None:
        """Count what this thread's piece of work has cost, or how its questions have ended."""
        with self._changed:
            self._add(self.scopes.path, purpose, usage, again=usage.cached > 0)

    def _allowed(self, path: str, requests: Sequence[Most], prices: Prices) -> int:
        config, round = self.config, _round(path)
        usages = [u for name, p in self._spent.items() if _round(name) == round for u in p.values()]
        told = sum(usage.seconds for usage in usages)  # by a tape, too, of what took no time now
        seconds = max(told, self._waited.get(round, 0.0))
        if config.max_seconds_per_round is not None and seconds >= config.max_seconds_per_round:
            return 0
        here, total = _sum(usages), self._total
        for name, held in self._held:
            here = here.plus(held) if name == round else here
            total = total.plus(held)
        tokens = [
            cap - spent
            for cap, spent in (
                (config.max_tokens_per_round, here.tokens),
                (config.max_tokens_total, total.tokens),
            )
            if cap is not None
        ]
        calls, usd = config.max_calls_per_round, config.max_usd_total
        return allow(
            requests,
            calls=None if calls is None else calls - here.calls,
            tokens=min(tokens, default=None),
            usd=None if usd is None else usd - total.usd,
            prices=prices,
        )

    def _add(self, path: str, purpose: str, usage: Usage, *, again: bool) -> None:
        """Count a cost; ``again`` if it may be one that was counted before, and forgotten."""
        purposes = self._spent.setdefault(path, {})
        purposes[purpose] = purposes.get(purpose, NO_USAGE) + usage
        cost, round = _sum([usage]), _round(path)
        if again and (before := self._forgotten.get(round)):
            known = before.at_most(cost)
            self._forgotten[round] = before.less(known)
            cost = cost.less(known)
        self._total = self._total.plus(cost)

    def _begin(self, path: str) -> None:
        with self._changed:
            round = _round(path)
            self._open.add(round)
            cost = _sum(self._spent.pop(path, {}).values())
            self._forgotten[round] = self._forgotten.get(round, _Sum()).plus(cost)

    def _close(self, round: str) -> None:
        with self._changed:
            whole = self.usage(round)
            for path in [path for path in self._spent if _round(path) == round]:
                del self._spent[path]
            self._spent[round] = whole
            self._forgotten.pop(round, None)
            self._waited.pop(round, None)
            self._open.discard(round)


class Budgeted:
    """A policy around a policy, which sends no request that might pass a cap.

    What is not sent has the finish ``UNSENT``: the first request that there is no room for, and all
    after it. Where there is no room for a whole batch only because a request might be larger than
    it turns out to be, the batch is sent piece by piece.

    Args:
        policy: who is asked.
        budget: counts; policies may share one.
        purpose: what its answers are for, where a request does not say.
        prices: of the model.
    """

    def __init__(
        self, policy: Policy, budget: Budget, *, purpose: str = "", prices: Prices = FREE
    ) -> None:
        self.policy, self.budget, self.purpose, self.prices = policy, budget, purpose, prices

    @property
    def version(self) -> int:
        """Version of the policy; 0 for one that never changes."""
        return getattr(self.policy, "version", 0)

    def for_purpose(self, purpose: str) -> Budgeted:
        """The same policy, with answers for something else."""
        return Budgeted(self.policy, self.budget, purpose=purpose, prices=self.prices)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        most = [most_tokens(request) for request in requests]
        done: list[Completion] = []
        while len(done) < len(requests):
            with self.budget.hold(most[len(done) :], self.prices) as n:
                sent = requests[len(done) : len(done) + n]
                try:
                    answers = self.policy.generate(sent) if sent else ()
                except BudgetSpent:  # an endpoint has caps of its own
                    answers = ()
                for request, answer in zip(sent, answers, strict=bool(answers)):
                    usage = _usage(answer)
                    purpose = request.purpose if isinstance(request, Prompt) else ""
                    self.budget.count(purpose or self.purpose, usage)
                    done.append(answer._replace(usage=usage))
            if not answers:
                break
        return done + [_UNSENT] * (len(requests) - len(done))


def _usage(answer: Completion) -> Usage:
    """What an answer has cost; a policy that does not count was asked once."""
    if answer.usage.calls or answer.usage.cached:
        return answer.usage
    if not isinstance(answer.decision, TokenDecision):
        return answer.usage + Usage(calls=1)
    read, written = len(answer.decision.prompt_ids), len(answer.decision.ids)
    return answer.usage + Usage(calls=1, prompt_tokens=read, completion_tokens=written)


def _round(path: str) -> str:
    return path.partition("/")[0]


def _sum(usages: Any) -> _Sum:
    total = _Sum()
    for usage in usages:
        total = total.plus(_Sum(usage.calls + usage.cached, usage.tokens, usage.usd))
    return total
