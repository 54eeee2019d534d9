"""A policy that sends no request which might pass a cap."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.errors import BudgetSpent
from coevo_gym.core.seams import Completion, Finish, Policy, Prompt, Request
from coevo_gym.core.spend import FREE, Meter, Prices, Tokens, Usage
from coevo_gym.core.trajectory import TokenDecision

_TOKENS_AROUND_A_CHAT = 64
"""More than what chat templates put around a chat, a system text of their own included."""
_TOKENS_AROUND_A_MESSAGE = 16
_UNSENT = Completion("", None, Finish.UNSENT)


def most_tokens(request: Request) -> Tokens:
    """Bound the tokens of a request from above: a token is at least one byte of UTF-8."""
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
    """A policy around a policy, which sends no request that might pass a cap.

    What is not sent has the finish ``UNSENT``: the first request that there is no room for, and all
    after it. Where there is no room for a whole batch only because a request might be larger than
    it turns out to be, the batch is sent piece by piece.

    Args:
        policy: who is asked.
        meter: counts, and knows the caps; policies may share one.
        purpose: what its answers are for, where a request does not say.
        prices: of the model.
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
        """The same policy, with answers for something else."""
        return Budgeted(self.policy, self.meter, purpose=purpose, prices=self.prices)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        most = [most_tokens(request) for request in requests]
        done: list[Completion] = []
        while len(done) < len(requests):
            with self.meter.hold(most[len(done) :], self.prices) as n:
                sent = requests[len(done) : len(done) + n]
                try:
                    answers = self.policy.generate(sent) if sent else ()
                except BudgetSpent:  # an endpoint has caps of its own
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
    """What an answer has cost; a policy that does not count was asked once."""
    if answer.usage.calls or answer.usage.cached:
        return answer.usage
    if not isinstance(answer.decision, TokenDecision):
        return answer.usage + Usage(calls=1)
    read, written = len(answer.decision.prompt_ids), len(answer.decision.ids)
    return answer.usage + Usage(calls=1, prompt_tokens=read, completion_tokens=written)
