"""A policy wrapper that sends no request that might exceed a cap."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.seams import Completion, Finish, Policy, Prompt, Request
from coevo_gym.core.spend import FREE, Meter, Prices, Tokens, Usage
from coevo_gym.core.trajectory import TokenDecision

_TOKENS_AROUND_A_CHAT = 64
"""Upper bound for the tokens that chat templates add, including a default system text."""
_TOKENS_AROUND_A_MESSAGE = 16
_UNSENT = Completion("", None, Finish.UNSENT)


def most_tokens(request: Request) -> Tokens:
    """Return an upper bound for the tokens of a request: a token has at least one byte of UTF-8."""
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
    """A policy wrapper that sends no request that might exceed a cap.

    Requests that are not sent have the finish ``UNSENT``: the first one that exceeds the budget,
    and all later ones. If a whole batch does not fit because its requests may be larger than they
    turn out to be, the batch is sent in parts.

    Args:
        policy: the wrapped policy.
        meter: the meter with counts and caps; policies may share one.
        purpose: default purpose of requests.
        prices: prices of the model.
    """

    def __init__(
        self, policy: Policy, meter: Meter, *, purpose: str = "", prices: Prices = FREE
    ) -> None:
        self.policy, self.meter, self.purpose, self.prices = policy, meter, purpose, prices

    @property
    def version(self) -> int:
        """Version of the policy; 0 for one that never changes."""
        return getattr(self.policy, "version", 0)

    def for_purpose(self, purpose: str) -> Budgeted:
        """Return the same policy with another default purpose."""
        return Budgeted(self.policy, self.meter, purpose=purpose, prices=self.prices)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Return one completion per request, in order."""
        most = [most_tokens(request) for request in requests]
        done: list[Completion] = []
        while len(done) < len(requests):
            with self.meter.hold(most[len(done) :], self.prices) as n:
                sent = requests[len(done) : len(done) + n]
                try:
                    answers = self.policy.generate(sent) if sent else ()
                except BudgetSpent:  # an endpoint has its own caps
                    answers = ()
                for request, answer in zip(sent, answers, strict=bool(answers)):
                    usage = _usage(answer)
                    purpose = request.purpose if isinstance(request, Prompt) else ""
                    self.meter.count(purpose or self.purpose, usage)
                    done.append(answer._replace(usage=usage))
            if not answers:
                break
        return done + [_UNSENT] * (len(requests) - len(done))


def _usage(answer: Completion) -> Usage:
    """Return the usage of an answer; one call for a policy that does not count."""
    if answer.usage.calls or answer.usage.cached:
        return answer.usage
    if not isinstance(answer.decision, TokenDecision):
        return answer.usage + Usage(calls=1)
    read, written = len(answer.decision.prompt_ids), len(answer.decision.ids)
    return answer.usage + Usage(calls=1, prompt_tokens=read, completion_tokens=written)
