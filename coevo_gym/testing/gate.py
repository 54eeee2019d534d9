"""A check that a gate satisfies the contract, using one acceptable and one bad draft."""

from __future__ import annotations

from dataclasses import replace

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Split
from coevo_gym.curricula.gates.candidate import Candidate, Gate, Rejected


def draft_of(benchmark: str) -> Draft:
    """Create a well-formed draft from a benchmark's first training task.

    Example:
        >>> draft_of("webshop").benchmark
        'webshop'
    """
    task = get_benchmark(benchmark).tasks(Split.TRAIN)[0]
    return Draft(
        benchmark=benchmark,
        scenario=task.scenario,
        instruction=task.instruction,
        world=task.world,
        solution=task.solution,
    )


def candidate_of(draft: Draft) -> Candidate:
    """Build and replay a draft to create a candidate for a gate."""
    benchmark = get_benchmark(draft.benchmark)
    task = benchmark.build(draft)
    return Candidate(draft, draft, task, replay=benchmark.replay(task, task.solution))


def assert_gate_contract(
    gate: Gate, *, passes: Draft | Candidate, fails: Draft | Candidate
) -> None:
    """Check that a gate satisfies the contract of the gate interface.

    It must have a name, pass a good candidate without removing anything from it, reject a bad
    candidate with a reason, and give the same answer every time.

    Args:
        gate: gate to check.
        passes: a draft that it passes, or a candidate for a gate that reads a model's proposal.
        fails: a draft or candidate that it rejects or holds.

    Raises:
        AssertionError: at the first check that fails.
    """
    assert gate.name.isidentifier(), f"a gate's name must be one word, got {gate.name!r}"
    good = passes if isinstance(passes, Candidate) else candidate_of(passes)
    for _ in range(2):
        through = gate.check(good)
        assert isinstance(through, Candidate), f"check() must return a Candidate, got {through!r}"
        copy = replace(
            through,
            task=good.task,
            minimal=good.minimal,
            env_steps=good.env_steps,
            said=good.said,
        )
        assert copy == good, "a gate may only shorten the task, add a message and count steps"
        assert through.env_steps >= good.env_steps, "a gate must not reduce the env steps"
    bad = fails if isinstance(fails, Candidate) else candidate_of(fails)
    reasons = {_rejection_reason(gate, bad) for _ in range(2)}
    assert len(reasons) == 1, f"the same draft is rejected for two reasons: {sorted(reasons)}"


def _rejection_reason(gate: Gate, candidate: Candidate) -> str:
    try:
        gate.check(candidate)
    except Rejected as rejected:
        reason = str(rejected).strip()
    else:
        raise AssertionError(f"The gate {gate.name!r} accepts a draft that it should reject")
    assert reason, "a rejection must have a reason"
    return reason
