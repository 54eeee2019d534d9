"""The gate that asks whether a task is worth the name: is there something to find out and to do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coevo_gym.core.benchmark import Benchmark, Clue, Effect, Evidence
from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.curricula.gates.minimise import minimised
from coevo_gym.curricula.gates.told import stands_in, tells_of
from coevo_gym.curricula.pool.embed import words

BLANK = frozenset({"", "-", "n/a", "na", "nan", "nil", "none", "null", "undefined", "unknown"})
"""Answers that say nothing."""
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SubstanceGate:
    """It takes the engine to solve it, its words lead there, and they do not give it away.

    It rejects a task whose reference is padded with steps that are not needed, or neither changes
    the engine's state nor reads anything from it; one whose answer, or whose reference, stands in
    its own instruction, or whose answer says nothing; and one whose instruction has nothing to do
    with what is verified.
    """

    benchmark: Benchmark
    name: str = "substance"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
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
    """How the words hold the solution; "" if they do not."""
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
    """What the words do not tell of; "" if they tell of all."""
    for clue in clues:
        if not any(tells_of(clue.said, name) for name in clue.names):
            return f"its instruction has nothing to do with its solution: no word of {clue.about}"
    return ""


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
