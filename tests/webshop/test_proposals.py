"""Drafts from what a model proposes for the shop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from coevo_gym.core.benchmark import Benchmark, get_benchmark, require_proposable, restrictions_of
from coevo_gym.core.errors import BuildError, TaskError
from coevo_gym.core.evolution import Context, Draft, Exchange, Proposal, Walk
from coevo_gym.core.task import Split
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.envs.proposals import MAX_ACTIONS, MAX_REQUEST, MAX_TURNS
from coevo_gym.testing import replay
from tests.standins import walks, webshop
from tests.standins.hostile import PROPOSALS, draft_or_none
from tests.toy import BENCHMARK as TOY

WEBSHOP = require_proposable(get_benchmark("webshop"))
TRAIN = WEBSHOP.tasks(Split.TRAIN, "builtin")
SOURCE, OTHER = TRAIN[0], TRAIN[40]
CONTEXT = Context(kind="boundary", task=SOURCE)


def proposal(**changes: Any) -> Proposal:
    """What another task asks for, as a model might say it."""
    fields = {"description": "", "turns": (OTHER.instruction,), "actions": OTHER.solution}
    return Proposal(confidence=0.9, **{**fields, **changes})


@pytest.mark.parametrize("source", [SOURCE, WEBSHOP.open(SOURCE)], ids=["asked", "open"])
def test_a_draft_is_about_the_last_product_opened(source: Any) -> None:
    context = Context(kind="boundary", task=source)
    looked = (OTHER.solution[0], f"click[{SOURCE.scenario}]", "click[< prev]", *OTHER.solution[1:])
    draft = WEBSHOP.draft(proposal(actions=looked), context)
    assert draft == Draft(
        benchmark="webshop",
        scenario=OTHER.scenario,
        instruction=OTHER.instruction,
        world=OTHER.world,
        solution=looked,
        subset="evolved",
        parents=(SOURCE.id,),
        context_id=context.id,
    )
    built = WEBSHOP.build(WEBSHOP.draft(proposal(), context))
    assert replay(built).success


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"turns": ("a mug", "and a lid")}, "the proposal has 2 user messages"),
        ({"turns": ("  ",)}, "the user's message in turn 1 is empty"),
        ({"turns": ("x",) * (MAX_TURNS + 1)}, "the limit is 20"),
        ({"turns": ("x" * (MAX_REQUEST + 1),)}, "4001 characters; the limit is 4000"),
        ({"turns": ("x" * 1_000_000,)}, "1000000 characters"),
        ({"actions": ()}, "there are no actions"),
        ({"actions": ("search[x]",) * (MAX_ACTIONS + 1)}, "101 actions; the limit is 100"),
        ({"actions": ("x" * 1_000_000,)}, "action 1 has 1000000 characters"),
        ({"actions": ("click[buy now]",)}, "opens a product page"),
        ({"actions": ("click[b0foreign]", "click[buy now]")}, "opens a product page"),
        ({"actions": OTHER.solution[:-1]}, r"the last action is not click\[buy now\]"),
        ({"actions": ("buy now",)}, r"the last action is not click\[buy now\]"),
    ],
)
def test_a_proposal_that_cannot_become_a_draft_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BuildError, match=reason):
        WEBSHOP.draft(proposal(**changes), CONTEXT)


def test_the_prompt_restrictions_list_the_opened_training_products() -> None:
    val = WEBSHOP.tasks(Split.VAL, "builtin")[0]

    def explored_codes(*codes: str, benchmark: Benchmark = WEBSHOP) -> tuple[str, ...]:
        exchanges = (Exchange(action=f"click[{code.lower()}]", observation="") for code in codes)
        walk = Walk(context_id="c", number=0, exchanges=tuple(exchanges))
        return restrictions_of(benchmark, SOURCE, [walk])

    mine, theirs = OTHER.scenario, val.scenario
    assert explored_codes() == explored_codes("buy now") == ()
    (rule,) = explored_codes(mine, "buy now")
    assert rule == f"Of the products that were opened, these may be asked for: {mine}."
    (rule,) = explored_codes(theirs, mine, mine)
    assert rule.endswith(f"may be asked for: {mine}. The others are reserved.")
    (rule,) = explored_codes(theirs)
    assert "None of the products" in rule
    assert theirs not in rule
    holding = benchmark_of("webshop", 0.5)
    held_out = next(t for t in TRAIN if holding.split_of(t.scenario) is Split.HELD_OUT)
    (rule,) = explored_codes(held_out.scenario, benchmark=holding)
    assert "None of the products" in rule


def test_a_context_of_another_benchmark_is_refused() -> None:
    with pytest.raises(TaskError, match="belongs to toy, not to webshop"):
        WEBSHOP.draft(proposal(), Context(kind="blind", task=TOY.tasks(Split.TRAIN)[0]))


@given(given_proposal=PROPOSALS)
@settings(max_examples=200)
def test_any_proposal_is_accepted_or_rejected_with_a_reason(given_proposal: Proposal) -> None:
    if draft := draft_or_none(WEBSHOP, given_proposal, CONTEXT):
        verdict = run_gates(default_gates(WEBSHOP), draft, context=CONTEXT).verdict
        assert verdict.accepted or verdict.reason


def test_a_scripted_explorer_in_place_of_a_model_finds_tasks() -> None:
    sources = TRAIN[:: len(TRAIN) // 40]
    accepted, verdicts = walks.evolve_tasks(
        sources, webshop.buy, webshop.propose, max_steps=15, wanted=8
    )
    assert len(accepted) == 8
    walks.assert_no_source_is_told(sources, verdicts)
