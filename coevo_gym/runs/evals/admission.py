"""Rule for opening the episodes that an endpoint plays, so that little of what is paid is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coevo_gym.agents.endpoint.endpoint import cap_message
from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.spend import NO_USAGE, Cost, Usage
from coevo_gym.episodes.runner import Admission

FIRST = 2
"""Number of episodes that begin under a cap before one has finished, which shows what one costs."""
MIN_LEFT = 0.25
"""Least share of a mean episode's cost that is set aside for each live episode."""


class PaidAdmission(Admission):
    """A rule for the episodes of an endpoint: those that have begun are finished first.

    An episode begins if the caps leave room for its mean cost besides the rest of the live
    episodes. After a request to stop, none begins.

    Args:
        endpoint: the endpoint.
        finished: model usage of each finished episode.
        stop: returns True once the user has asked to stop.
    """

    def __init__(
        self,
        endpoint: OpenAIPolicy,
        finished: Iterable[Usage],
        stop: Callable[[], bool],
    ) -> None:
        self._endpoint, self._stop = endpoint, stop
        self._total, self._n = NO_USAGE, 0
        self._live: Sequence[Usage] = ()
        for usage in finished:
            self.record_usage(usage)

    def allows(self, live: Sequence[Usage]) -> bool:
        """Return True if another episode may begin; see :class:`Admission`."""
        self._live = tuple(live)
        if self.closed is None and self._stop():
            self.closed = KeyboardInterrupt()
        if self.closed is not None:
            return False
        endpoint = self._endpoint
        if endpoint.config.max_tokens_total is None and endpoint.config.max_usd_total is None:
            return True
        if not self._n:
            return len(live) < FIRST
        # The last request is sent only if its upper bound fits, which is more than it takes.
        next_one = self._mean + endpoint.unused
        if endpoint.has_room(Cost.from_usages(0, next_one) + self._remaining_cost()):
            return True
        if not live:
            most = next_one.prompt_tokens, next_one.completion_tokens
            work = "the next episode may take about"
            self.closed = BudgetSpent(
                cap_message(endpoint.config, endpoint.capped_cost, most, work)
            )
        return False

    def record_usage(self, usage: Usage) -> None:
        """Record the model usage of a finished episode."""
        self._total, self._n = self._total + usage, self._n + 1

    def in_words(self) -> str:
        """Describe the number of live episodes and the cost of finishing them; "" if none is."""
        n = len(self._live)
        text = str(n or "")
        if not n or not self._n:
            return text
        rest = self._remaining_cost()
        usd = f", {rest.usd:.2f} USD" if rest.usd else ""
        return f"{text}, which may take about {rest.tokens:,} more tokens{usd}"

    @property
    def _mean(self) -> Usage:
        """Mean usage per episode.

        The live episodes count as far as they are, because the first to finish are short.
        """
        used, n = sum(self._live, self._total), self._n
        return Usage(
            prompt_tokens=used.prompt_tokens // n,
            completion_tokens=used.completion_tokens // n,
            usd=used.usd / n,
        )

    def _remaining_cost(self) -> Cost:
        """Return the expected cost until all live episodes have finished."""
        mean, rest = self._mean, Cost()
        for used in self._live:
            tokens = max(mean.tokens - used.tokens, int(MIN_LEFT * mean.tokens))
            rest += Cost(tokens=tokens, usd=max(mean.usd - used.usd, MIN_LEFT * mean.usd))
        return rest
