"""Gates for what a model proposes; a draft that no model made passes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo_gym.core.benchmark import Benchmark, proposable
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Proposal
from coevo_gym.curricula.gates.candidate import Candidate, Rejected


@dataclass(frozen=True, slots=True)
class DraftGate:
    """The benchmark can make a draft of what a model proposes, and UTF-8 can hold it."""

    benchmark: Benchmark
    name: str = "draft"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        proposal, context = candidate.proposal, candidate.context
        if not isinstance(proposal, Proposal):
            return replace(candidate, said="came as a draft")
        if context is None:
            raise Rejected("there is no context to draft it in")
        try:
            draft = proposable(self.benchmark).draft(proposal, context)
            _ = draft.id
        except BuildError as error:
            raise Rejected(str(error)) from error
        except UnicodeEncodeError as error:
            raise Rejected("the draft holds text that is not valid Unicode") from error
        return replace(candidate, draft=draft)
