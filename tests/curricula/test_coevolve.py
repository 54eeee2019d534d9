from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.core.errors import ConfigError, SplitLeakError
from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Group
from coevo_gym.curricula.pool_curriculum import CurriculumConfig, PoolCurriculum, make_curriculum
from tests.curricula.episodes import HELD_OUT, TRAIN, group

RNG = np.random.default_rng


def curriculum(
    n_tasks: int = 20, growth: Mapping[str, Any] = {}, **settings: Any
) -> PoolCurriculum:
    of_rounds = {} if growth.get("kind") == "none" else {"every_groups": 4}
    config = CurriculumConfig(growth={**of_rounds, **growth}, **settings)
    return config.make(TRAIN[:n_tasks])


def practise(
    c: PoolCurriculum, rounds: int = 4, *, calls: tuple[str, ...] = ("press", "done")
) -> None:
    """Mixed groups on the initial tasks of the pool: each fires a boundary signal."""
    for i in range(rounds):
        c.record([group([1, 0, 0], c.pool[i], calls=calls, id=f"g{i}")])


def verdict(*, accepted: bool, context_id: str = "c") -> Verdict:
    gate = "" if accepted else "build"
    return Verdict(draft_id="d", context_id=context_id, accepted=accepted, gate=gate)


def test_the_first_round_is_unguided_and_planned_until_it_is_applied() -> None:
    c = CurriculumConfig(initial_size=7).make()
    planned = c.plan(RNG(0))
    assert planned is not None
    assert (planned.id, planned.n_unguided, planned.contexts) == ("round-0", 7, ())
    assert planned.budget == Round.unguided(7).budget
    assert c.plan(RNG(1)) is planned
    c.apply(RoundResult(round_id="round-0", accepted=TRAIN[:5]))
    assert c.plan(RNG(0)) is None
    assert c.metrics()["pool_size"] == 5
    assert c.metrics()["evolved"] == 0


def test_an_unguided_round_that_finds_nothing_is_repeated_with_another_seed() -> None:
    c = CurriculumConfig().make()
    first = c.plan(RNG(0))
    assert first is not None
    c.apply(RoundResult(round_id=first.id))
    with pytest.raises(ConfigError, match=r"pool is empty.*verdicts"):
        c.next(1, RNG(0))
    second = c.plan(RNG(1))
    assert second is not None
    assert second.id == "round-1"
    assert second.seed != first.seed


def test_a_curriculum_with_initial_tasks_needs_no_unguided_round() -> None:
    assert curriculum().plan(RNG(0)) is None
    with pytest.raises(SplitLeakError):
        CurriculumConfig().make(HELD_OUT[:1])


def test_next_is_uniform_over_the_pool_without_repeats_where_possible() -> None:
    c, rng = curriculum(10), RNG(0)
    assert len({task.id for task in c.next(10, rng)}) == 10
    assert len(c.next(25, rng)) == 25
    counts = Counter(c.next(1, rng)[0].id for _ in range(5000))
    assert len(counts) == 10
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_a_guided_round_explores_where_signals_fired() -> None:
    c = curriculum()
    practise(c, 3)
    assert c.plan(RNG(0)) is None  # three groups of four
    c.record([group([1, 1], c.pool[9])])
    planned = c.plan(RNG(0))
    assert planned is not None
    assert {context.task.id for context in planned.contexts} == {t.id for t in TRAIN[:3]}
    assert planned.n_unguided == 0
    assert planned.known == tuple(c.pool)
    context = planned.contexts[0]
    assert context.kind == "boundary"
    assert context.success is False  # the failed rollout says more than the successful one
    assert context.actions == ("action 0", "action 1")
    assert context.summary == "1 of 3 rollouts succeeded."


def test_a_round_has_one_context_for_each_task_and_signal_kind() -> None:
    c = curriculum(detector={"n_min": 10, "theta": 40})
    for _ in range(3):
        c.record([group([1, 1, 1], c.pool[0], calls=("common",))])
    for _ in range(2):
        c.record([group([1, 0], c.pool[0], calls=("seldom",))])
    planned = c.plan(RNG(0))
    assert planned is not None
    kinds = Counter(context.kind for context in planned.contexts)
    assert kinds == {"forgetting": 1, "boundary": 1, "rare": 1}
    summaries = {context.kind: context.summary for context in planned.contexts}
    assert "Solved before" in summaries["forgetting"]
    assert "behaviour seldom was seen in" in summaries["rare"]


def test_groups_of_one_batch_may_share_their_id() -> None:
    c = curriculum(growth={"every_groups": 2})
    mixed, solved = group([1, 0], c.pool[0]), group([1, 1], c.pool[1])
    c.record([replace(mixed, id="step-1"), replace(solved, id="step-1")])
    planned = c.plan(RNG(0))
    assert planned is not None
    assert [(context.task, context.success) for context in planned.contexts] == [(c.pool[0], False)]


def test_every_signal_kind_gets_a_share_of_a_small_round() -> None:
    c = curriculum(40, growth={"max_contexts": 6}, detector={"n_min": 20, "theta": 10})
    c.record([group([1, 1], c.pool[i], calls=("common",), id=f"a{i}") for i in range(30)])
    mixed = [group([1, 0], c.pool[i], calls=("common",), id=f"b{i}") for i in range(30)]
    c.record([*mixed, group([0], c.pool[30], calls=("seldom",), id="c")])
    planned = c.plan(RNG(0))
    assert planned is not None
    kinds = Counter(context.kind for context in planned.contexts)
    assert sum(kinds.values()) == 6
    assert kinds["rare"] == 1
    assert abs(kinds["boundary"] - kinds["forgetting"]) <= 1


def test_control_curricula_plan_as_many_drafts_as_the_guided_one() -> None:
    for mode in ("signals", "blind", "anywhere"):
        c = curriculum(growth={"kind": mode, "drafts": 12})
        practise(c, 3)
        c.record([group([1, 1], c.pool[9], id="solved")])
        planned = c.plan(RNG(0))
        assert planned is not None
        assert planned.budget == 12
        assert len(planned.contexts) == (0 if mode == "anywhere" else 3)
        if mode == "blind":
            practised = {c.pool[i].id for i in (0, 1, 2, 9)}
            assert {context.kind for context in planned.contexts} == {"blind"}
            assert {context.task.id for context in planned.contexts} <= practised
            assert all(context.summary == "" for context in planned.contexts)
            assert all(context.actions for context in planned.contexts)
        if mode == "anywhere":
            assert planned.n_unguided == 12


def test_blind_contexts_do_not_follow_the_signals() -> None:
    counts = Counter[str]()
    for seed in range(60):
        c = curriculum(growth={"kind": "blind"})
        practise(c, 2)
        c.record([group([1, 1], c.pool[i], id=f"s{i}") for i in range(2, 20)])
        planned = c.plan(RNG(seed))
        assert planned is not None
        counts.update(context.task.id for context in planned.contexts)
    weak = sum(counts[c.pool[i].id] for i in range(2))
    assert weak < 0.3 * sum(counts.values())


def test_static_never_evolves_and_a_due_round_waits_for_a_signal() -> None:
    static = curriculum(growth={"kind": "none"})
    practise(static, 10)
    assert static.plan(RNG(0)) is None
    guided = curriculum()
    for i in range(6):
        guided.record([group([1, 1], guided.pool[i])])
    assert guided.plan(RNG(0)) is None
    practise(guided, 1)
    assert guided.plan(RNG(0)) is not None


def test_only_the_configured_signals_fire() -> None:
    c = curriculum(detector={"signals": ("forgetting",)})
    practise(c, 8)
    assert c.plan(RNG(0)) is None
    assert c.metrics()["signals_boundary"] == 0


def test_applying_a_round_counts_it_once_and_refuses_held_out_tasks() -> None:
    c = curriculum()
    practise(c)
    planned = c.plan(RNG(0))
    assert planned is not None
    leak = RoundResult(round_id=planned.id, accepted=(TRAIN[40], HELD_OUT[0]))
    with pytest.raises(SplitLeakError):
        c.apply(leak)
    assert c.metrics()["pool_size"] == 20
    assert c.plan(RNG(0)) is planned
    verdicts = tuple(verdict(accepted=i < 2, context_id=planned.contexts[0].id) for i in range(4))
    result = RoundResult(
        round_id=planned.id, accepted=TRAIN[40:42], verdicts=verdicts, env_steps=30, gate_steps=21
    )
    for _ in range(2):
        c.apply(result)
    metrics = c.metrics()
    assert metrics["pool_size"] == 22
    assert metrics["evolved"] == 2
    assert (metrics["explore_steps"], metrics["gate_steps"]) == (9, 21)
    practised = metrics["practice_steps"]
    assert practised > 0
    assert metrics["share_gate_steps"] == 21 / (30 + practised)
    assert metrics["share_explore_steps"] == 9 / (30 + practised)
    assert metrics["signals_boundary"] == 12  # four groups of three rollouts
    assert metrics["share_boundary"] == 1.0
    assert metrics["yield"] == 4 / 4
    assert metrics["pass_rate"] == 2 / 4
    assert metrics["conversion"] == 2 / 12


def test_evaluation_and_held_out_groups_are_never_recorded() -> None:
    c = curriculum()
    before = c.state_dict()
    episode = EvalTrajectory(
        task_id=TRAIN[0].id, steps=(), score=1.0, success=True, end_reason=EndReason.SOLVED
    )
    for bad in (group([1, 0], HELD_OUT[0]), Group("g", TRAIN[0], 1, (episode,))):  # type: ignore[arg-type]
        with pytest.raises(SplitLeakError):
            c.record([group([1, 0]), bad])
    assert c.state_dict() == before


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["record", "record", "record", "plan", "apply"]), max_size=30),
    st.sampled_from(["signals", "blind", "anywhere", "none"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_saved_curriculum_continues_the_same_stream(
    moves: list[str], mode: str, given_tasks: bool, seed: int
) -> None:
    growth = {"kind": mode} if mode == "none" else {"kind": mode, "every_groups": 3}
    config = CurriculumConfig(growth=growth, detector={"n_min": 8, "window": 2})
    tasks = TRAIN[:12] if given_tasks else ()

    def live(c: PoolCurriculum, steps: list[str], rng: np.random.Generator) -> list[object]:
        seen: list[object] = []
        for step in steps:
            planned = c._planned
            if step == "plan":
                seen.append(c.plan(rng))
            elif step == "apply" and planned is not None:
                fresh = tuple(TRAIN[20 + int(i)] for i in rng.integers(40, size=3))
                c.apply(RoundResult(round_id=planned.id, accepted=fresh))
            elif step == "record" and len(c.pool):
                (task,) = c.next(1, rng)
                outcomes = rng.integers(2, size=3).astype(float).tolist()
                calls = ("press",) * int(rng.integers(3))
                seen.append(c.record([group(outcomes, task, calls=calls, id=f"g{len(seen)}")]))
        return seen

    original, copy = config.make(tasks), config.make(tasks)
    live(original, moves, RNG(seed))
    copy.load_state_dict(json.loads(json.dumps(original.state_dict())))
    onwards = [*moves, "plan", "apply", *["record"] * 6, "plan", "apply"]
    assert live(original, onwards, RNG(7)) == live(copy, onwards, RNG(7))
    assert original.state_dict() == copy.state_dict()
    assert original.metrics() == copy.metrics()


def test_a_planned_round_that_was_not_applied_is_planned_again_after_a_restart() -> None:
    c = curriculum()
    practise(c)
    planned = c.plan(RNG(0))
    copy = curriculum(0)
    copy.load_state_dict(json.loads(json.dumps(c.state_dict())))
    again = copy.plan(RNG(1))
    assert again == planned
    assert again is not None
    assert again.known == tuple(c.pool)


def test_each_preset_has_its_growth_and_an_unknown_preset_is_refused() -> None:
    kinds = {
        "coevolve": "signals",
        "static": "none",
        "random_append": "anywhere",
        "signal_blind": "blind",
    }
    assert {name: make_curriculum(name).growth.config.growth.kind for name in kinds} == kinds
    often = make_curriculum("random_append", growth={"every_groups": 5})
    assert often.growth.config.growth.every_groups == 5
    with pytest.raises(ConfigError, match="Did you mean 'coevolve'"):
        make_curriculum("coevolv")
    with pytest.raises(ConfigError, match="every_groups"):
        make_curriculum("static", growth={"every_groups": 0})


def test_metrics_count_practice_by_outcome() -> None:
    c = curriculum(
        selector={"kind": "band", "cap": 2}, growth={"kind": "anywhere", "when": "reserve"}
    )
    c.record([group([1, 0], c.pool[0]), group([0, 0], c.pool[1]), group([1, 1], c.pool[2])])
    metrics = c.metrics()
    assert metrics["mixed_groups"] == metrics["mixed_groups_recent"] == pytest.approx(1 / 3)
    steps = {name: metrics[f"steps_{name}"] for name in ("all_fail", "mixed", "all_pass")}
    assert steps == {"all_fail": 4, "mixed": 4, "all_pass": 4}
    # K = 2 and the mean is 1/2, so q = 2 p (1 - p): p is 1/2, 1/4 and 3/4 where it was tried.
    assert metrics["reserve"] == pytest.approx(17 * 0.5 + 0.5 + 2 * 0.375)
    c.record([group([1, 0], c.pool[0])])  # two visits: used up
    assert c.metrics()["reserve"] == pytest.approx(17 * 0.5 + 2 * 0.375)
