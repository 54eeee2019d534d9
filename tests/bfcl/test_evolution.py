"""Evolution on the real backends: rounds, chains of evolved tasks, bad drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.evolution import Context, Draft, Round, RoundResult
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.envs.bfcl.tasks import native_tasks, split_of
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.testing import replay
from tests.bfcl.test_builder import DONE, HOME, SOLUTION, WORDS, draft_of, native_draft

BFCL = get_benchmark("bfcl")
VAL = native_tasks(Split.VAL, "base")[0]


def run(round: Round) -> RoundResult:
    return GatedEvolver(BFCL, ScriptedExplorer(BFCL)).run(round)


def test_an_unguided_round_finds_proven_tasks_only_in_training_scenarios() -> None:
    result = run(Round.unguided(20, seed=1))
    assert len(result.accepted) == 20
    assert result.env_steps > 20 * 4
    for task in result.accepted:
        assert split_of(task.scenario) is task.split is Split.TRAIN
        assert replay(task).success
        assert not any(BFCL.replay(task, [DONE] * 9).scores)
        assert task.parents
        assert task.provenance["round"] == "round-0"
        assert Task.from_json(task.to_json()) == task
    assert len({task.scenario for task in result.accepted}) >= 5
    assert len({task.instruction for task in result.accepted}) == 20
    for verdict in result.verdicts:
        assert verdict.accepted or (verdict.gate and verdict.reason)
    again = run(Round.unguided(20, seed=1))
    assert again.accepted == result.accepted
    assert again.verdicts == result.verdicts


def test_most_drafts_are_accepted_in_all_four_kinds_of_scenario() -> None:
    blocks = [[t for t in native_tasks(Split.TRAIN) if _block(t) == k] for k in range(4)]
    for number, block in enumerate(blocks):
        contexts = tuple(Context(kind="blind", task=task) for task in block[:: len(block) // 6])
        result = run(Round(id="round-1", contexts=contexts, budget=40, seed=number))
        assert len(result.accepted) >= 0.8 * len(result.verdicts) > 12
        assert {_block(task) for task in result.accepted} == {number}


def _block(task: Task) -> int:
    """Which fifty of the official entries: they share their main backend."""
    return int(task.scenario.rpartition("_")[2]) // 50


def test_evolved_tasks_can_be_explored_for_several_generations() -> None:
    tasks: tuple[Task, ...] = (HOME,)
    for generation in range(4):
        contexts = tuple(
            Context(kind="boundary", task=task, actions=task.solution) for task in tasks[:3]
        )
        result = run(Round(id=f"round-{generation}", contexts=contexts, budget=24, seed=generation))
        tasks = result.accepted
        assert tasks
        for task in tasks:
            assert isinstance(task.world, BFCLWorld)
            assert task.world.config == HOME.world.config  # type: ignore[attr-defined]
            assert replay(task).success
    assert max(len(task.world.setup) for task in tasks) > 3  # type: ignore[attr-defined]


def test_exploring_from_a_validation_task_is_a_split_leak() -> None:
    explorer = ScriptedExplorer(BFCL)
    disguised = VAL.model_copy(update={"split": Split.TRAIN})
    for task in (VAL, disguised):
        with pytest.raises(SplitLeakError):
            explorer.explore([Context(kind="boundary", task=task)], [np.random.default_rng(0)])


BAD_DRAFTS: dict[str, tuple[str, Draft | str]] = {
    "not JSON": ("parse", "Make a file!"),
    "an unknown class": ("parse", draft_of().model_dump_json().replace("TicketAPI", "ShopAPI")),
    "another benchmark": ("schema", draft_of(benchmark="toy")),
    "two messages": ("schema", draft_of(words=WORDS[:1], solution=("[pwd()]", DONE))),
    "a validation scenario": ("split_leak", native_draft(VAL)),
    "a training scenario claimed, a validation world": (
        "build",
        native_draft(VAL).model_copy(update={"scenario": HOME.scenario}),
    ),
    "a call that fails": ("build", draft_of(solution=("[cd('x')]", *SOLUTION[1:]))),
    "a near duplicate": ("near_duplicate", draft_of(words=(WORDS[0].upper(), "Go on."))),
    "an exact duplicate": ("duplicate", draft_of()),
}


@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_a_bad_draft_is_rejected_by_the_responsible_gate(name: str) -> None:
    gate, draft = BAD_DRAFTS[name]
    known = [BFCL.build(draft_of())] if "duplicate" in gate else []
    gates: list[Any] = list(default_gates(BFCL, known))
    if gate == "duplicate":  # which the words alone would give away
        gates = [each for each in gates if each.name != "near_duplicate"]
    verdict = run_gates(gates, draft).verdict
    assert (verdict.accepted, verdict.gate) == (False, gate), verdict.reason
    assert verdict.reason


def test_a_good_draft_passes_all_gates() -> None:
    assert run_gates(default_gates(BFCL), draft_of()).verdict.accepted
    assert run_gates(default_gates(BFCL), draft_of().model_dump_json()).verdict.accepted
