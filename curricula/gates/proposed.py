"""Gates for what models propose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo_gym.core.benchmark import Benchmark, proposable
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Proposal
from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.curricula.pool.known import KnownTasks

CONFIDENCE = 0.7
LEXICAL_JACCARD = 0.8


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


@dataclass(frozen=True, slots=True)
class ConfidenceGate:
    """The model that proposes it is sure enough that its actions bring the goal about."""

    threshold: float = CONFIDENCE
    name: str = "confidence"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        proposal = candidate.proposal
        if not isinstance(proposal, Proposal):
            return replace(candidate, said="came as a draft")
        if proposal.confidence < self.threshold:
            sure = f"its model is {proposal.confidence:.2f} sure of it"
            raise Rejected(f"{sure}, less than {self.threshold}")
        return replace(candidate, said=f"{proposal.confidence:.2f}")


@dataclass(frozen=True, slots=True)
class LexicalGate:
    """Its instruction shares less of its words with any known one of its scenario."""

    known: KnownTasks
    jaccard: float = LEXICAL_JACCARD
    name: str = "lexical"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        alike = self.known.most_alike(candidate.the_draft)
        if alike is None:
            return candidate
        task, jaccard = alike
        if jaccard >= self.jaccard:
            raise Rejected(f"shares {jaccard:.0%} of its words with {task.name}")
        return replace(candidate, said=f"{jaccard:.0%} of its words with {task.name}")
