"""The gate that holds tasks for review by a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Proposal
from coevo_gym.curricula.gates.candidate import Candidate, HoldTask
from coevo_gym.curricula.gates.settings import HoldConfig
from coevo_gym.curricula.pool.known import KnownTasks


@dataclass(frozen=True, slots=True)
class HoldGate:
    """A gate that holds tasks matching a rule for review. It comes last, after all other checks."""

    benchmark: Benchmark
    known: KnownTasks
    rules: HoldConfig
    name: str = "hold"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the task against the rules; see :class:`Gate`."""
        if reasons := list(self._reasons(candidate)):
            raise HoldTask("; ".join(reasons))
        return candidate

    def _reasons(self, candidate: Candidate) -> Iterator[str]:
        task, rules = candidate.the_task, self.rules
        if task.benchmark in rules.benchmarks:
            yield f"all new tasks of {task.benchmark} wait"
        if rules.first_of_scenario and not self.known.has_scenario(task.scenario):
            yield f"it is the first of scenario {task.scenario!r}"
        if isinstance(candidate.proposal, Proposal):
            confidence, least = candidate.proposal.confidence, rules.below_confidence
            if confidence < least:
                yield f"its model was {confidence:.2f} sure of it, less than {least}"
        if rules.pattern:
            texts = (self.benchmark.evidence(task).said, *task.solution)
            found = re.search(rules.pattern, "\n".join(texts), re.IGNORECASE)
            if found:
                yield f"it holds {found[0]!r:.100}"
