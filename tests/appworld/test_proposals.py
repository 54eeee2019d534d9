"""Drafts from what a model proposes for the apps."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings

from coevo_gym.core.benchmark import get_benchmark, require_proposable
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Proposal
from coevo_gym.core.task import Split, Task
from coevo_gym.envs.appworld.moves import FINISH
from coevo_gym.testing import replay
from tests.standins import appworld, walks
from tests.standins.hostile import PROPOSALS, draft_or_none

pytestmark = pytest.mark.usefixtures("appworld_root")
APPWORLD = require_proposable(get_benchmark("appworld"))


@cache
def source() -> Task:
    return APPWORLD.tasks(Split.TRAIN, "builtin")[0]


def draft(*actions: str, instruction: str = "How many songs do I have?") -> tuple[str, ...]:
    proposal = Proposal(description="", turns=(instruction,), actions=actions, confidence=1.0)
    result = APPWORLD.draft(proposal, Context(kind="blind", task=source()))
    assert (result.instruction, result.world) == (instruction, source().world)
    return result.solution


def test_a_draft_completes_the_task_in_its_last_action() -> None:
    answer = "I know.\n```python\napis.supervisor.complete_task(answer=3)\n```"
    assert draft("print(1)", "x = 2") == ("print(1)", "x = 2", FINISH)
    assert draft("print(1)", answer) == ("print(1)", answer)


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (("print(1)", "def f(:"), "action 2 is not valid Python"),
        (("I would look around first.",), "action 1 is not valid Python"),
        (("print('\0')",), "action 1 is not valid Python"),
        (("(" * 500,), "action 1 is not valid Python"),
        (("# nothing",), "action 1 does nothing"),
        (("",), "action 1 does nothing"),
        ((), "there are no actions"),
    ],
)
def test_a_proposal_that_cannot_become_a_draft_is_refused(
    actions: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(BuildError, match=reason):
        draft(*actions)


@given(proposal=PROPOSALS)
@settings(max_examples=200)
def test_any_proposal_becomes_a_draft_or_is_refused(proposal: Proposal) -> None:
    context = Context(kind="blind", task=source())
    if result := draft_or_none(APPWORLD, proposal, context):
        assert result.context_id == context.id


@pytest.mark.slow
def test_a_scripted_explorer_in_place_of_a_model_finds_tasks() -> None:
    sources = APPWORLD.tasks(Split.TRAIN, "builtin")[::7]
    accepted, verdicts = walks.evolve_tasks(
        sources, appworld.busy, appworld.propose, max_steps=18, wanted=3
    )
    assert len(accepted) == 3
    assert all(replay(task).success for task in accepted)
    walks.assert_no_source_is_told(sources, verdicts)
