"""A gate: drafts whose instruction is long are rejected.

A method of your own passes it on to its evolver, behind the gates that prove a task::

    def gates(benchmark, known):
        return (*kit.gates(benchmark, known), NewgateGate())

    native, scope = kit.native_tasks, kit.scope
    GatedEvolver(kit.benchmark, kit.explorer(), gates_of=gates, native=native, scope=scope)

``python newgate.py`` checks that it keeps the contract of a gate.
"""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.testing.gate import assert_gate_contract, draft_of


@dataclass(frozen=True, slots=True)
class NewgateGate:
    """The instruction can be read at a glance.

    It sees the candidate as the gates before it have left it: ``the_draft`` what was proposed,
    ``the_task`` what was built from it, ``the_replay`` what its reference did.

    Args:
        most_words: words that an instruction may have.
        name: what verdicts call this gate.
    """

    most_words: int = 60
    name: str = "newgate"

    def check(self, candidate: Candidate) -> Candidate:
        """Let a candidate through, or say why not.

        Raises:
            Rejected: if its instruction is too long.
        """
        n_words = len(candidate.the_draft.instruction.split())
        if n_words > self.most_words:
            raise Rejected(f"its instruction has {n_words} words, more than {self.most_words}")
        return candidate


if __name__ == "__main__":
    good = draft_of("webshop")
    bad = good.model_copy(update={"instruction": good.instruction + 60 * " please"})
    assert_gate_contract(NewgateGate(), passes=good, fails=bad)
    print("newgate keeps the contract of a gate.")
