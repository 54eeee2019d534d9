"""A gate that rejects drafts with long instructions.

Your own method can pass it to its evolver, after the built-in gates::

    def gates(benchmark, known):
        return (*kit.gates(benchmark, known), NewgateGate())

    native, scope = kit.native_tasks, kit.scope
    GatedEvolver(kit.benchmark, kit.explorer(), gates_of=gates, native=native, scope=scope)

``python newgate.py`` checks that it keeps the gate contract.
"""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.testing.gate import assert_gate_contract, draft_of


@dataclass(frozen=True, slots=True)
class NewgateGate:
    """A gate that accepts only short instructions.

    Earlier gates have filled in the candidate: ``the_draft`` is the proposal, ``the_task`` is the
    task that was built from it, and ``the_replay`` is the replay of its reference.

    Attributes:
        most_words: maximum number of words in an instruction.
        name: name of this gate in verdicts.
    """

    most_words: int = 60
    name: str = "newgate"

    def check(self, candidate: Candidate) -> Candidate:
        """Return an accepted candidate, or raise an error with the reason for its rejection.

        Raises:
            Rejected: if its instruction is too long.
        """
        n_words = len(candidate.the_draft.instruction.split())
        if n_words > self.most_words:
            raise Rejected(f"its instruction has {n_words} words; the limit is {self.most_words}")
        return candidate


if __name__ == "__main__":
    good = draft_of("webshop")
    bad = good.model_copy(update={"instruction": good.instruction + 60 * " please"})
    assert_gate_contract(NewgateGate(), passes=good, fails=bad)
    print("newgate keeps the contract of a gate.")
