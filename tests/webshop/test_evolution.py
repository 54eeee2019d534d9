"""Evolution on the real shop: rounds, drafts that follow their context, bad drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Context, Draft, Round
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.envs.webshop.tasks import builtin_catalogue, split_of
from tests.webshop.handmade import draft_of

WEBSHOP = get_benchmark("webshop")
TRAIN = coevo_gym.tasks("webshop", "train", "builtin")
VAL = coevo_gym.tasks("webshop", "val", "builtin")
SHOP = builtin_catalogue()
GOOD = next(task for task in TRAIN if len(task.solution) == 4)
PLAIN = next(task for task in TRAIN if len(task.solution) == 3)


def family(task: Task) -> str:
    return SHOP[task.scenario].query


def explore(contexts: Sequence[Context]) -> list[tuple[Context, Draft]]:
    explorer = ScriptedExplorer(WEBSHOP)
    pairs = []
    rngs = [np.random.default_rng(index) for index in range(len(contexts))]
    for context, exploration in zip(contexts, explorer.explore(contexts, rngs), strict=True):
        for draft in exploration.drafts:
            assert isinstance(draft, Draft)
            pairs.append((context, draft))
    return pairs


def test_most_drafts_belong_to_the_family_of_their_context() -> None:
    two = {family(TRAIN[0]), family(TRAIN[600])}
    assert len(two) == 2
    tasks = [task for task in TRAIN if family(task) in two]
    contexts = [Context(kind="boundary", task=task) for task in tasks]
    drafts = explore(contexts)
    own = sum(SHOP[draft.scenario].query == family(context.task) for context, draft in drafts)
    assert len(drafts) >= len(contexts)
    assert own >= 0.8 * len(drafts)


def test_blind_contexts_give_drafts_in_the_mix_of_the_catalogue() -> None:
    rng = np.random.default_rng(0)
    tasks = [TRAIN[int(i)] for i in rng.integers(len(TRAIN), size=400)]
    drafts = explore([Context(kind="blind", task=task) for task in tasks])
    mine = Counter(SHOP[draft.scenario].category for _, draft in drafts)
    whole = Counter(SHOP[task.scenario].category for task in TRAIN)
    distance = 0.5 * sum(abs(mine[c] / len(drafts) - whole[c] / len(TRAIN)) for c in whole)
    assert distance < 0.1
    assert len({SHOP[draft.scenario].query for _, draft in drafts}) > 60  # of 72 families


def test_an_unguided_round_finds_proven_tasks_only_for_training_products() -> None:
    evolver = GatedEvolver(WEBSHOP, ScriptedExplorer(WEBSHOP))
    result = evolver.run(Round.unguided(30, seed=1))
    assert len(result.accepted) == 30
    assert result.env_steps > 30 * 4
    for task in result.accepted:
        assert split_of(task.scenario) is task.split is Split.TRAIN
        assert WEBSHOP.replay(task, task.solution).scores[-1] == 1.0
        assert task.parents
        assert task.provenance["round"] == "round-0"
    rejected = [verdict for verdict in result.verdicts if not verdict.accepted]
    assert all(verdict.reason and verdict.gate for verdict in rejected)
    again = GatedEvolver(WEBSHOP, ScriptedExplorer(WEBSHOP)).run(Round.unguided(30, seed=1))
    assert again.accepted == result.accepted


BAD_DRAFTS: dict[str, tuple[str, Draft | str]] = {
    "not JSON": ("parse", "Buy a lamp!"),
    "a list": ("parse", "[]"),
    "no solution": ("parse", '{"benchmark": "webshop", "scenario": "x", "instruction": "y"}'),
    "another benchmark": ("schema", draft_of(GOOD, benchmark="toy")),
    "an empty instruction": ("schema", draft_of(GOOD, instruction="  ")),
    "two actions": ("schema", draft_of(GOOD, solution=GOOD.solution[:2])),
    "a validation product": ("split_leak", draft_of(VAL[0])),
    "a training product claimed, a validation one bought": (
        "build",
        draft_of(VAL[0], scenario=GOOD.scenario),
    ),
    "no purchase": ("build", draft_of(GOOD, solution=(*GOOD.solution[:-1], "click[< prev]"))),
    "an impossible click": (
        "build",
        draft_of(GOOD, solution=(GOOD.solution[0], "click[no such thing]", *GOOD.solution[1:])),
    ),
    "an unknown action": ("build", draft_of(GOOD, solution=("think[hard]", *GOOD.solution))),
    "an option not in the instruction": (
        "build",
        draft_of(GOOD, instruction=f"Find me {SHOP[GOOD.scenario].query}."),
    ),
    "too expensive": ("build", draft_of(GOOD, instruction=f"{GOOD.instruction} Under 1 dollar!")),
    "another shop": (
        "build",
        draft_of(GOOD, world=GOOD.world.model_copy(update={"digest": "0" * 16})),
    ),
    "a near duplicate": (
        "near_duplicate",
        draft_of(GOOD, instruction=GOOD.instruction.upper()),
    ),
}


@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_a_bad_draft_is_rejected_by_the_responsible_gate(name: str) -> None:
    gate, draft = BAD_DRAFTS[name]
    known = [WEBSHOP.build(draft_of(GOOD))] if gate == "near_duplicate" else []
    verdict = run_gates(default_gates(WEBSHOP, known), draft).verdict
    assert (verdict.accepted, verdict.gate) == (False, gate), verdict.reason
    assert verdict.reason


def test_a_good_draft_passes_all_gates() -> None:
    for task in (GOOD, PLAIN):
        assert run_gates(default_gates(WEBSHOP), draft_of(task)).verdict.accepted
