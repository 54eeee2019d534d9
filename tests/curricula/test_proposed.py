"""What a model proposes, on its way through the gates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.core.evolution import Check, Draft, Proposal, Verdict
from coevo_gym.curricula.gates.candidate import (
    MAX_ACTIONS,
    MAX_CHARS,
    MAX_TURNS,
    Candidate,
    HoldTask,
    Rejected,
)
from coevo_gym.curricula.gates.gates import GateResult, default_gates, run_gates
from tests.curricula.episodes import TRAIN
from tests.curricula.proposals import CONTEXT, Drafting, proposal

BENCHMARK = Drafting()
GATES = default_gates(BENCHMARK, [TRAIN[0]])


def judge(candidate: Proposal | Draft | str) -> GateResult:
    return run_gates(GATES, candidate, context=CONTEXT)


def assert_storable(verdict: Verdict) -> None:
    text = verdict.model_dump_json()
    text.encode()
    assert Verdict.model_validate_json(text) == verdict
    assert verdict.draft_id
    assert len(text) < 400_000


def test_an_accepted_proposal_becomes_a_task() -> None:
    result = judge(proposal())
    assert result.task is not None
    assert Proposal.model_validate(result.verdict.proposal) == proposal()
    assert result.verdict.draft["parents"] == (CONTEXT.task.id,)
    assert result.verdict.context_id == CONTEXT.id
    assert [check.gate for check in result.verdict.checks] == [gate.name for gate in GATES]
    assert_storable(result.verdict)


def test_the_checks_of_a_verdict_end_before_the_rejecting_gate() -> None:
    verdict = judge(proposal(turns=("Press a kettle.",))).verdict
    names = [gate.name for gate in GATES]
    assert verdict.gate == "substance"
    assert [check.gate for check in verdict.checks] == names[: names.index("substance")]


def test_the_verdict_on_a_draft_without_a_model_has_no_proposal() -> None:
    draft = BENCHMARK.draft(proposal(), CONTEXT)
    verdict = judge(draft).verdict
    assert verdict.accepted
    assert verdict.proposal == {}
    assert Check("draft", "came as a draft") in verdict.checks
    assert judge(draft.model_dump_json()).verdict == verdict


def test_a_proposal_that_cannot_be_drafted_is_stored_in_the_verdict() -> None:
    for description, reason in (
        ("refuse this", "nobody could want that"),
        ("crash here", "draft failed: ZeroDivisionError: oops �"),
        ("an unwritable one", "not valid Unicode"),
    ):
        verdict = judge(proposal(description)).verdict
        assert (verdict.accepted, verdict.gate, verdict.draft) == (False, "draft", {})
        assert reason in verdict.reason
        assert verdict.proposal["description"] == description
        assert verdict.draft_id == proposal(description).id
        assert_storable(verdict)


def test_a_proposal_without_a_context_is_rejected() -> None:
    verdict = run_gates(GATES, proposal()).verdict
    assert (verdict.gate, verdict.reason) == (
        "draft",
        "the proposal has no context: the previously explored task is missing",
    )
    assert verdict.context_id == ""


def test_an_oversized_proposal_is_rejected_and_stored_shortened() -> None:
    for fields, reason in (
        ({"turns": ("x",) * (MAX_TURNS + 1)}, "51 turns; the limit is 50"),
        ({"actions": ("x",) * 100_000}, f"100000 actions; the limit is {MAX_ACTIONS}"),
        ({"done_when": "x" * MAX_CHARS}, f"characters; the limit is {MAX_CHARS}"),
    ):
        verdict = judge(proposal(**fields)).verdict
        assert verdict.gate == "parse"
        assert reason in verdict.reason
        assert_storable(verdict)
        assert len(verdict.model_dump_json()) < 100_000


def test_a_custom_gate_may_add_a_message_count_steps_and_hold_a_task() -> None:
    class Asking:
        name = "asking"

        def check(self, candidate: Candidate) -> Candidate:
            return replace(candidate, said="fine \ud800", env_steps=candidate.env_steps + 5)

    class Holding:
        name = "holding"

        def check(self, candidate: Candidate) -> Candidate:
            raise HoldTask("wait", env_steps=2)

    plain = judge(proposal())
    result = run_gates([*GATES, Asking(), Holding()], proposal(), context=CONTEXT)
    assert result.held == plain.task
    assert result.task is None
    verdict = result.verdict
    assert (verdict.accepted, verdict.gate, verdict.reason) == (False, "holding", "wait")
    assert verdict.checks[-1] == Check("asking", "fine �")
    assert verdict.task_id == plain.verdict.task_id
    assert result.env_steps == plain.env_steps + 7


def test_a_rejected_task_is_not_held() -> None:
    class Refusing:
        name = "refusing"

        def check(self, candidate: Candidate) -> Candidate:
            raise Rejected("no")

    assert run_gates([*GATES, Refusing()], proposal(), context=CONTEXT).held is None


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["press red", "press blue", "done", "press \x00", "x" * 41_000, "[" * 5_000, "NaN", "{}"]
    ),
)


@settings(max_examples=2_000)
@given(
    description=TEXTS | st.sampled_from(["crash", "refuse", "unwritable"]),
    turns=st.lists(TEXTS, min_size=1, max_size=3) | st.just(["x"] * 60),
    actions=st.lists(TEXTS, max_size=6) | st.sampled_from([["x"] * 250, [*TRAIN[9].solution]]),
    confidence=st.floats(0, 1),
    done_when=TEXTS,
)
def test_any_proposal_gives_a_storable_verdict(**fields: Any) -> None:
    candidate = Proposal(
        **{name: tuple(f) if isinstance(f, list) else f for name, f in fields.items()}
    )
    result = judge(candidate)
    assert result.verdict.accepted == (result.task is not None)
    assert_storable(result.verdict)
