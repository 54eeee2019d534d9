"""Tasks that people let into a run join it at its next round, once, and come back on resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.task import Split, Task
from coevo_gym.runs.evolving.rounds import StoredEvolver
from coevo_gym.store.database import RunStore
from coevo_gym.store.rows import Decision
from tests.toy import BENCHMARK

NATIVE = BENCHMARK.tasks(Split.TRAIN)
FIRST = Round.unguided(3, seed=1)


def later(number: int, *, seed: int = 2) -> Round:
    return Round(id=f"round-{number}", n_unguided=1, budget=4, seed=seed)


def on_hold(task: Task) -> Verdict:
    return Verdict(
        draft_id=f"draft-{task.id[:6]}",
        accepted=False,
        gate="hold",
        reason="the first of its scenario",
        task_id=task.id,
    )


class Holds:
    """Finds one task a round, and holds another."""

    def __init__(self) -> None:
        self.ran = 0

    def run(self, round: Round) -> RoundResult:
        number = 2 * self.ran
        self.ran += 1
        accepted_task, held_task = NATIVE[number : number + 2]
        return RoundResult(
            round_id=round.id,
            accepted=(accepted_task,),
            held=(held_task,),
            verdicts=(
                Verdict(draft_id="x", accepted=True, task_id=accepted_task.id),
                on_hold(held_task),
            ),
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path / "run.db")) as opened:
        yield opened


def apply(
    store: RunStore, evolver: StoredEvolver, round: Round, step: int, arm: str = "a"
) -> RoundResult:
    """Carry out a round as an arm does."""
    result = evolver.run(round)
    store.add_round(arm, step, 0, 0, round, result, by=evolver.settings_hash(round))
    return result


def release(store: RunStore, *tasks: Task) -> None:
    store.add_decisions([Decision(task.id, "released", at="now") for task in tasks])


def test_held_tasks_are_read_with_their_round_and_verdict(store: RunStore) -> None:
    evolver = StoredEvolver(Holds(), store, arm="a")
    for number in (1, 2):
        apply(store, evolver, later(number), step=number)
    assert [(h.round_id, h.step, h.task, h.verdict) for h in store.tasks_on_hold("a")] == [
        ("round-1", 1, NATIVE[1], on_hold(NATIVE[1])),
        ("round-2", 2, NATIVE[3], on_hold(NATIVE[3])),
    ]
    assert store.tasks_on_hold("b") == []
    assert [task.arm for task in store.tasks_on_hold()] == ["a", "a"]


def test_a_released_task_joins_the_next_round_once(store: RunStore) -> None:
    evolver = StoredEvolver(Holds(), store, arm="a")
    assert apply(store, evolver, later(1), 1).accepted == (NATIVE[0],)
    release(store, NATIVE[1])
    second = apply(store, evolver, later(2), 2)
    assert second.accepted == (NATIVE[2], NATIVE[1])
    assert len(second.verdicts) == 2  # it was judged in the round that found it
    assert apply(store, evolver, later(3), 3).accepted == (NATIVE[4],)


def test_released_tasks_join_in_the_order_of_the_decisions(store: RunStore) -> None:
    evolver = StoredEvolver(Holds(), store, arm="a")
    for number in (1, 2, 3):
        apply(store, evolver, later(number), number)
    release(store, NATIVE[5], NATIVE[1])
    store.add_decisions([Decision(NATIVE[3].id, "rejected", "a bad one", "now")])
    assert apply(store, evolver, later(4), 4).accepted == (NATIVE[6], NATIVE[5], NATIVE[1])


def test_the_latest_decision_about_a_held_task_counts(store: RunStore) -> None:
    evolver = StoredEvolver(Holds(), store, arm="a")
    apply(store, evolver, later(1), 1)
    release(store, NATIVE[1])
    store.add_decisions([Decision(NATIVE[1].id, "rejected", "on second thought", "now")])
    assert apply(store, evolver, later(2), 2).accepted == (NATIVE[2],)
    release(store, NATIVE[1])
    assert apply(store, evolver, later(3), 3).accepted == (NATIVE[4], NATIVE[1])


def test_a_repeated_round_gives_the_same_result_despite_later_releases(store: RunStore) -> None:
    """A run killed after a round repeats it when it resumes from an earlier checkpoint."""
    evolver = StoredEvolver(Holds(), store, arm="a")
    apply(store, evolver, later(1), 1)
    release(store, NATIVE[1])
    before = apply(store, evolver, later(2), 2)
    store.delete_after("a", 1)
    apply_again = StoredEvolver(Holds(), store, arm="a")
    release(store, NATIVE[3])  # too late for a round that has been
    assert apply(store, apply_again, later(2), 2) == before
    assert apply(store, evolver, later(3), 3).accepted == (NATIVE[4], NATIVE[3])


def test_a_released_task_joins_again_if_the_round_it_joined_is_deleted(store: RunStore) -> None:
    evolver = StoredEvolver(Holds(), store, arm="a")
    apply(store, evolver, later(1), 1)
    release(store, NATIVE[1])
    apply(store, evolver, later(2), 2)
    store.delete_after("a", 1)
    assert apply(store, evolver, later(2, seed=3), 2).accepted == (NATIVE[4], NATIVE[1])


def test_arms_share_their_initial_tasks_despite_releases_in_between(store: RunStore) -> None:
    holds = Holds()
    one = StoredEvolver(holds, store, shared=FIRST, arm="a")
    other = StoredEvolver(holds, store, by="other", shared=FIRST, arm="b")
    first = apply(store, one, FIRST, 0)
    release(store, NATIVE[1])
    assert apply(store, other, FIRST, 0, arm="b") == first
    for evolver, arm in ((one, "a"), (other, "b")):
        assert apply(store, evolver, later(1), 1, arm).accepted[1:] == (NATIVE[1],)


def test_a_released_task_joins_only_the_arm_that_found_it(store: RunStore) -> None:
    one, other = (StoredEvolver(Holds(), store, by=arm, arm=arm) for arm in "ab")
    apply(store, one, later(1), 1)
    release(store, NATIVE[1])
    assert len(apply(store, other, later(2), 1, arm="b").accepted) == 1


def test_an_imported_task_joins_every_arm_with_its_verdict(store: RunStore) -> None:
    task = NATIVE[20]
    verdict = Verdict(draft_id="imported", accepted=True, task_id=task.id)
    store.add_decisions([Decision(task.id, "imported", at="now", verdict=verdict)], [task])
    for arm in "ab":
        evolver = StoredEvolver(Holds(), store, by=arm, arm=arm)
        result = apply(store, evolver, later(1), 1, arm)
        assert result.accepted[-1] == task
        assert result.verdicts[-1] == verdict
        assert len(apply(store, evolver, later(2), 2, arm).accepted) == 1
