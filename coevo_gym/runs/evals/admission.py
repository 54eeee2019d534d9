"""A rule that limits how much paid work is lost if an endpoint's caps end an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coevo_gym.agents.endpoint.endpoint import cap_message
from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.spend import NO_USAGE, Cost, Usage
from coevo_gym.episodes.runner import Admission

FIRST = 2
"""Number of episodes that may start under a cap before the cost of one episode is known."""
MIN_LEFT = 0.25
"""Minimum share of an episode's mean cost that is reserved for each live episode."""


class PaidAdmission(Admission):
    """A rule that starts an endpoint's next episode only if all live episodes can be finished.

    An episode starts if the caps leave room for its mean cost in addition to the remaining cost of
    the live episodes. After a stop request, no episode starts.

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
        next_one = self._mean_usage + endpoint.unused
        if endpoint.has_room(Cost.from_usages(0, next_one) + self._remaining_cost()):
            return True
        if not live:
            most = next_one.prompt_tokens, next_one.completion_tokens
            work = "the next episode may take about"
            self.closed = BudgetSpent(
                cap_message(endpoint.config, endpoint.cost_towards_caps, most, work)
            )
        return False

    def record_usage(self, usage: Usage) -> None:
        """Record the model usage of a finished episode."""
        self._total, self._n = self._total + usage, self._n + 1

    def describe_live_episodes(self) -> str:
        """Describe the number of live episodes and the cost of finishing them; "" without any."""
        n = len(self._live)
        text = str(n or "")
        if not n or not self._n:
            return text
        rest = self._remaining_cost()
        usd = f", {rest.usd:.2f} USD" if rest.usd else ""
        return f"{text}, which may take about {rest.tokens:,} more tokens{usd}"

    @property
    def _mean_usage(self) -> Usage:
        """The mean usage per episode.

        Live episodes count with their usage so far, because the first episodes to finish are short.
        """
        used, n = sum(self._live, self._total), self._n
        return Usage(
            prompt_tokens=used.prompt_tokens // n,
            completion_tokens=used.completion_tokens // n,
            usd=used.usd / n,
        )

    def _remaining_cost(self) -> Cost:
        """Return the expected cost until all live episodes have finished."""
        mean, rest = self._mean_usage, Cost()
        for used in self._live:
            tokens = max(mean.tokens - used.tokens, int(MIN_LEFT * mean.tokens))
            rest += Cost(tokens=tokens, usd=max(mean.usd - used.usd, MIN_LEFT * mean.usd))
        return rest
