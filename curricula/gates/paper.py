"""The acceptance rule of CoEvolve (arXiv 2604.15840), for comparison with proof by execution."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.inquiry import Advisor
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.curricula.gates.judge import ask_judge
from coevo_gym.curricula.gates.solve import Solver, try_task
from coevo_gym.curricula.growth.evidence import exchanges_of, opening_of

OWN_ENDS = frozenset({EndReason.SOLVED, EndReason.FAILED, EndReason.AGENT_DONE})
"""End reasons of episodes that finished by themselves."""


@dataclass(frozen=True, slots=True)
class PaperGate:
    """A gate that accepts tasks on which a solver shown the reference scores or convinces a judge.

    A score above 0 is sufficient. The judge is asked only about an episode that finished by itself.
    """

    benchmark: Benchmark
    solver: Solver
    advisor: Advisor
    name: str = "paper"

    def check(self, candidate: Candidate) -> Candidate:
        """Try the task once with the reference shown; see :class:`Gate`."""
        tried = try_task(self.solver, candidate.the_task, 1, tip=True)
        if not tried.ended:
            raise Rejected(f"could not be tried: {tried.problem}", env_steps=tried.env_steps)
        (rollout,) = tried.ended
        problem, said = self._judged(candidate, rollout)
        if problem:
            raise Rejected(problem, env_steps=tried.env_steps)
        return replace(candidate, said=said, env_steps=candidate.env_steps + tried.env_steps)

    def _judged(self, candidate: Candidate, rollout: Trajectory) -> tuple[str, str]:
        """Return a reason to reject the rollout, or else a finding in its favour."""
        if rollout.score > 0:
            return "", f"scores {rollout.score:.2f}"
        if rollout.end_reason not in OWN_ENDS:
            return f"its solver came to no end: {rollout.end_reason}", ""
        answer = ask_judge(
            self.advisor,
            candidate,
            self.benchmark,
            exchanges_of(rollout),
            opening=opening_of(rollout),
            reference=candidate.the_task.solution,
        )
        if answer.value is None:
            return f"scores 0, and no judge answers: {answer.problem}", ""
        if not answer.value.success:
            return f"scores 0, and a judge finds fault: {answer.value.reason}", ""
        return "", f"a judge says: {answer.value.reason}"
