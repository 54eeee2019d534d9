"""Drafts from what a model proposes for a conversation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from coevo_gym.core.benchmark import get_benchmark, require_proposable
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Proposal
from coevo_gym.core.task import Split, Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.tasks import CLOSING
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.testing import replay
from tests.bfcl.test_builder import HOME
from tests.standins import bfcl, walks
from tests.standins.hostile import PROPOSALS, draft_or_none

BFCL = require_proposable(get_benchmark("bfcl"))
CONTEXT = Context(kind="forgetting", task=HOME)
LIST, WHERE = "[ls(a=True)]", "<think>Where am I?</think>[pwd()]"
SAID = "Where am I, and what is here, the hidden files with it?"


def calls(messages: tuple[str, ...]) -> list[list[str]]:
    """The names called in each turn of a draft."""
    turns: list[list[str]] = [[]]
    for message in messages:
        names = [item.name for item in parse_message(message) if isinstance(item, Call)]
        if not names:
            assert message == CLOSING
            turns.append([])
        turns[-1] += names
    assert turns.pop() == []
    return turns


def turns_of(*actions: str, n_turns: int = 1) -> list[list[str]]:
    proposal = Proposal(
        description="", turns=(SAID,) * n_turns, actions=tuple(actions), confidence=1.0
    )
    draft = BFCL.draft(proposal, CONTEXT)
    world = draft.world
    assert isinstance(world, BFCLWorld)
    assert world.turns == (SAID,) * n_turns
    assert draft.instruction == SAID
    return calls(draft.solution)


@pytest.mark.parametrize(
    "actions",
    [
        (WHERE, LIST),
        (WHERE, LIST, "That is all."),
        (WHERE, "I go on.", LIST),
        ("[pwd(), ls(a=True)]",),
        ('<tool_call>{"name": "pwd", "arguments": {}}</tool_call>', "[ls(True)]", CLOSING),
    ],
)
def test_all_calls_belong_to_one_turn_if_the_user_speaks_once(actions: tuple[str, ...]) -> None:
    assert turns_of(*actions) == [["pwd", "ls"]]


def test_a_message_without_calls_ends_a_turn() -> None:
    two = [["pwd", "ls"], ["pwd"]]
    assert turns_of(WHERE, LIST, "So.", WHERE, n_turns=2) == two
    assert turns_of(WHERE, LIST, "So.", "Then:", WHERE, "Bye.", n_turns=2) == two
    assert turns_of(WHERE, LIST, n_turns=2) == [["pwd"], ["ls"]]
    with pytest.raises(BuildError, match="sends 2 messages, but the actions form 3 turns"):
        turns_of(WHERE, LIST, WHERE, n_turns=2)
    with pytest.raises(BuildError, match="sends 3 messages, but the actions form 2 turns"):
        turns_of(WHERE, LIST, "So.", WHERE, n_turns=3)


def test_a_draft_world_holds_out_no_function_and_keeps_the_setup() -> None:
    held_out = BFCL.tasks(Split.TRAIN, "miss_func")[3]
    world = held_out.world
    assert isinstance(world, BFCLWorld)
    assert world.held_out
    begun = held_out.model_copy(update={"world": world.model_copy(update={"setup": ("pwd()",)})})
    source: Task
    for source in (begun, BFCL.open(begun)):
        context = Context(kind="blind", task=source)
        proposal = Proposal(description="", turns=(SAID,), actions=(WHERE,), confidence=1.0)
        draft_world = BFCL.draft(proposal, context).world
        assert isinstance(draft_world, BFCLWorld)
        assert (draft_world.held_out, draft_world.unlisted, draft_world.setup) == (
            (),
            (),
            ("pwd()",),
        )
        assert (draft_world.config, draft_world.classes) == (world.config, world.classes)


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (("ls()", "Done."), "there are no calls"),
        (("[ls(),",), "there are no calls"),
        (("[ls(a=x)]",), "action 1: .* is not a list of calls"),
        ((WHERE, "<tool_call>{</tool_call>"), "action 2: .* is not JSON"),
        (("[rm_rf(path='/')]",), r"action 1: there is no function 'rm_rf'"),
        (("[lockDoors(unlock=True, door=[])]",), "there is no function 'lockDoors'"),
        (("[pwd(1, 2)]",), "action 1: "),
        (
            ('<tool_call>{"name": "cd", "arguments": {"folder": "\\ud800"}}</tool_call>',),
            "not valid",
        ),
    ],
)
def test_a_proposal_that_cannot_become_a_draft_is_refused(
    actions: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(BuildError, match=reason):
        turns_of(*actions)


@given(proposal=PROPOSALS)
@settings(max_examples=200)
def test_any_proposal_is_accepted_or_rejected_with_a_reason(proposal: Proposal) -> None:
    if draft := draft_or_none(BFCL, proposal, CONTEXT):
        verdict = run_gates(default_gates(BFCL), draft, context=CONTEXT).verdict
        assert verdict.accepted or verdict.reason


def test_a_scripted_explorer_in_place_of_a_model_finds_tasks() -> None:
    train = BFCL.tasks(Split.TRAIN)
    sources = train[:: len(train) // 60]
    accepted, verdicts = walks.evolve_tasks(
        sources, walks.random_rule("bfcl"), bfcl.propose, max_steps=18, wanted=30
    )
    assert len(accepted) == 30
    assert {len(task.world.turns) for task in accepted} == {1, 2}  # type: ignore[attr-defined]
    assert all(replay(task).success for task in accepted)
    walks.assert_no_source_is_told(sources, verdicts)
