"""Gates for proposals made by models."""

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
    """A gate that turns a model's proposal into a draft that UTF-8 can encode."""

    benchmark: Benchmark
    name: str = "draft"

    def check(self, candidate: Candidate) -> Candidate:
        """Draft the proposal; see :class:`Gate`."""
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
    """A gate that requires a minimum confidence of the model in its proposal."""

    threshold: float = CONFIDENCE
    name: str = "confidence"

    def check(self, candidate: Candidate) -> Candidate:
        """Compare the confidence with the threshold; see :class:`Gate`."""
        proposal = candidate.proposal
        if not isinstance(proposal, Proposal):
            return replace(candidate, said="came as a draft")
        if proposal.confidence < self.threshold:
            sure = f"its model is {proposal.confidence:.2f} sure of it"
            raise Rejected(f"{sure}, less than {self.threshold}")
        return replace(candidate, said=f"{proposal.confidence:.2f}")


@dataclass(frozen=True, slots=True)
class LexicalGate:
    """A gate that rejects instructions too similar in words to a known one of the scenario."""

    known: KnownTasks
    jaccard: float = LEXICAL_JACCARD
    name: str = "lexical"

    def check(self, candidate: Candidate) -> Candidate:
        """Compare the words with the most similar known instruction; see :class:`Gate`."""
        alike = self.known.most_alike(candidate.the_draft)
        if alike is None:
            return candidate
        task, jaccard = alike
        if jaccard >= self.jaccard:
            raise Rejected(f"shares {jaccard:.0%} of its words with {task.name}")
        return replace(candidate, said=f"{jaccard:.0%} of its words with {task.name}")
