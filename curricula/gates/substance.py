"""The gate that rejects trivial, leaked or unrelated tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coevo_gym.core.benchmark import Benchmark, Clue, Effect, Evidence
from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.curricula.gates.minimise import minimised
from coevo_gym.curricula.gates.told import stands_in, tells_of
from coevo_gym.curricula.pool.embed import words

BLANK = frozenset({"", "-", "n/a", "na", "nan", "nil", "none", "null", "undefined", "unknown"})
"""Answers without content."""
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SubstanceGate:
    """A gate that requires tasks to need the engine and to be described by their instruction.

    It rejects a task if its reference contains unnecessary steps, if its reference neither changes
    nor reads the engine's state, if its instruction contains the answer or the whole reference, if
    its answer has no content, or if its instruction is unrelated to what is verified.
    """

    benchmark: Benchmark
    name: str = "substance"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the instruction, the answer and the effects; see :class:`Gate`."""
        task = candidate.the_task
        evidence = self.benchmark.evidence(task)
        problem = _given_away(evidence, task.solution) or _unrelated(evidence.clues)
        if problem:
            raise Rejected(problem)
        played, steps = candidate.replay, 0
        if not candidate.minimal or played is None:
            short = minimised(self.benchmark, candidate.the_draft, task)
            played, steps = short.replay, short.env_steps
            if short.dropped:
                reason = f"its reference is padded: {_quoted(short.dropped[0])} is not needed"
                raise Rejected(reason, env_steps=steps)
        if not {Effect.READ, Effect.CHANGED} & {*played.effects}:
            reason = "its reference changes nothing in the engine and reads nothing from it"
            raise Rejected(reason, env_steps=steps)
        return replace(candidate, env_steps=candidate.env_steps + steps)


def _given_away(evidence: Evidence, solution: Sequence[str]) -> str:
    """Return how the instruction gives away the solution; "" if it does not."""
    for answer in evidence.answers:
        if answer.strip().casefold() in BLANK:
            return f"its answer says nothing: {answer!r}"
        if stands_in(evidence.said, answer):
            return f"its answer stands in its own instruction: {_quoted(answer)}"
    told = [action for action in solution if len(words(action)) > 1]
    if told and all(stands_in(evidence.said, action) for action in told):
        return f"its instruction recites its own solution: {_quoted(told[0])}"
    return ""


def _unrelated(clues: Sequence[Clue]) -> str:
    """Return the part of the solution that the instruction does not mention; "" if none."""
    for clue in clues:
        if not any(tells_of(clue.said, name) for name in clue.names):
            return f"its instruction has nothing to do with its solution: no word of {clue.about}"
    return ""


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
