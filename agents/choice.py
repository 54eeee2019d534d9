"""An agent whose policy chooses among a benchmark's candidate actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coevo_gym.core.errors import TaskError
from coevo_gym.core.seams import Act, Choice, Completion, Finish, Policy, Sampling
from coevo_gym.core.trajectory import ChoiceDecision, EndReason, View


@dataclass(frozen=True)
class ChoiceAgent:
    """An agent that turns views into choices for a policy, and the policy's answers into actions.

    It ignores the cues of a view, because a policy that scores candidates reads no advice.

    Attributes:
        policy: policy that makes the choices.
        choices: function that returns the candidates of a view, such as ``benchmark.choices``.
        sampling: sampling settings; temperature 0 is greedy.
    """

    policy: Policy
    choices: Callable[[View], tuple[str, ...]]
    sampling: Sampling = field(default_factory=Sampling)

    def greedy(self) -> ChoiceAgent:
        """Return a deterministic version of this agent for evaluation."""
        return ChoiceAgent(self.policy, self.choices, Sampling(temperature=0.0))

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one ``Act`` per view, using one batch of requests."""
        completions = self.policy.generate([self._choice_request(view) for view in views])
        return [_to_act(completion) for completion in completions]

    def decision_for(self, view: View, action: str) -> ChoiceDecision | None:
        """Return the decision that chooses ``action``, or None if it is not a candidate."""
        options = self.choices(view)
        return (
            ChoiceDecision(view, options, options.index(action), 0.0) if action in options else None
        )

    def _choice_request(self, view: View) -> Choice:
        options = self.choices(view)
        if not options:
            raise TaskError(
                f"The env offers no action after {view.observation[:200]!r}. This policy only "
                "chooses among listed actions. For free text, use a language model (policy.kind)."
            )
        return Choice(view, options, self.sampling)


def _to_act(completion: Completion) -> Act:
    if completion.finish is Finish.UNSENT:
        return Act("", end=EndReason.MAX_TOKENS)
    return Act(completion.text, completion.decision)
