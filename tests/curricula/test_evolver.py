from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark, get_benchmark
from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError
from coevo_gym.core.evolution import Context, Draft, Explored, Round, RoundResult, Verdict
from coevo_gym.core.inquiry import Spent
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.explore.evolver import MAX_ATTEMPTS, GatedEvolver
from coevo_gym.curricula.explore.explorer import (
    BUDGET,
    Exploration,
    Explorer,
    ScriptedExplorer,
)
from coevo_gym.curricula.gates.gates import default_gates
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from tests.curricula.episodes import HELD_OUT, TRAIN
from tests.faults import break_engines
from tests.toy import BENCHMARK, ToyBenchmark

RNG = np.random.default_rng


def context(index: int = 0, **fields: object) -> Context:
    known = {"kind": "boundary", "task": TRAIN[index], "actions": TRAIN[index].solution}
    return Context(**{**known, **fields})  # type: ignore[arg-type]


def evolver(**fields: object) -> GatedEvolver:
    explorer = ScriptedExplorer(BENCHMARK)
    return GatedEvolver(BENCHMARK, explorer, **fields)  # type: ignore[arg-type]


def guided(n: int = 5, budget: int = 20, seed: int = 3) -> Round:
    contexts = tuple(context(i) for i in range(n))
    return Round(id="round-4", contexts=contexts, budget=budget, seed=seed)


def content(result: RoundResult) -> dict[str, object]:
    return result.model_dump(exclude={"seconds"})


def explore(explorer: Explorer, context: Context, rng: Generator) -> Exploration:
    """What comes of a context by itself."""
    (exploration,) = explorer.explore([context], [rng])
    return exploration


class Bringing:
    """An explorer that brings the same from everywhere."""

    def __init__(self, exploration: Exploration, concurrency: int = 1) -> None:
        self.found, self.concurrency = exploration, concurrency
        self.batches: list[tuple[Context, ...]] = []

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        self.batches.append(tuple(contexts))
        return [self.found for _ in zip(contexts, rngs, strict=True)]


class OnLookout:
    """A benchmark that keeps the walks it is asked to abstract."""

    def __init__(self, inner: Benchmark, walks: list[Trajectory]) -> None:
        self._inner, self._walks = inner, walks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        self._walks.append(trace)
        return self._inner.drafts(trace, context, rng)


class Watched(ToyBenchmark):
    """Keeps the walks it is asked to abstract."""

    def __init__(self) -> None:
        self.walks: list[Trajectory] = []

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        self.walks.append(trace)
        return super().drafts(trace, context, rng)


def test_walks_follow_the_recorded_actions_before_they_diverge() -> None:
    benchmark = Watched()
    explorer = ScriptedExplorer(benchmark, rounds=200)
    exploration = explore(explorer, context(), RNG(0))
    assert exploration.env_steps == sum(len(walk.steps) for walk in benchmark.walks)
    assert len(exploration.drafts) == len(benchmark.walks) == 200
    assert {walk.task_id for walk in benchmark.walks} == {TRAIN[0].id}
    mine = context().actions
    shared = [
        next((i for i, (a, b) in enumerate(zip(walk.actions, mine, strict=False)) if a != b), 4)
        for walk in benchmark.walks
    ]
    assert {0, 1, 2, 4} <= set(shared)
    assert max(len(walk.steps) for walk in benchmark.walks) == 8  # the env's own limit


def test_walks_end_at_the_explorers_limit_and_at_dead_ends() -> None:
    benchmark = Watched()
    explore(ScriptedExplorer(benchmark, rounds=20, max_steps=2), context(), RNG(0))
    assert max(len(walk.steps) for walk in benchmark.walks) == 2
    benchmark.choices = lambda view: ()  # type: ignore[method-assign]
    exploration = explore(ScriptedExplorer(benchmark), context(actions=()), RNG(0))
    assert exploration == Exploration((), 0)


DRAWN = {
    "toy": "f8413ca957b4df809376c07fa83d2c5edc9e9d3c7b035de615d20171518f5432",
    "webshop": "af28d799064d55462123163768f1c10d369ab536952ddbee18e28cdc84d7b596",
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_random_draws_of_walks_equal_the_stored_ones(name: str) -> None:
    """What a run learns hangs on every draw: a change of them makes all runs incomparable."""
    benchmark, walks, steps, rng = get_benchmark(name), list[Any](), 0, RNG(11)
    explorer = ScriptedExplorer(OnLookout(benchmark, walks), rounds=3)
    for task in benchmark.tasks(Split.TRAIN)[:6]:
        known = Context(kind="boundary", task=task, actions=benchmark.demonstration(task))
        steps += explore(explorer, known, rng).env_steps
    episodes = [[t.task_id, list(t.actions), str(t.end_reason), t.score] for t in walks]
    text = json.dumps([episodes, steps, int(rng.integers(2**31))])
    assert len(walks) == 18
    assert hashlib.sha256(text.encode()).hexdigest() == DRAWN[name]


def test_an_explorer_passes_on_the_error_of_a_lost_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    break_engines(monkeypatch, "_act", lambda env: True)
    with pytest.raises(EnvBackendError, match="the engine is gone"):
        explore(ScriptedExplorer(BENCHMARK), context(), RNG(0))


def test_exploration_depends_only_on_context_and_generator() -> None:
    explorer = ScriptedExplorer(BENCHMARK)
    assert explore(explorer, context(), RNG(1)) == explore(explorer, context(), RNG(1))
    assert explore(explorer, context(), RNG(1)) != explore(explorer, context(), RNG(2))


def test_exploring_from_a_held_out_task_is_refused() -> None:
    leak = context(task=HELD_OUT[0])
    disguised = context(task=HELD_OUT[0].model_copy(update={"split": Split.TRAIN}))
    for bad in (leak, disguised):
        with pytest.raises(SplitLeakError, match="explore from"):
            explore(ScriptedExplorer(BENCHMARK), bad, RNG(0))
    with pytest.raises(SplitLeakError):
        evolver().run(guided().model_copy(update={"contexts": (leak,)}))
    with pytest.raises(SplitLeakError):
        evolver(native=HELD_OUT[:1]).run(Round.unguided(2))


def test_the_result_depends_only_on_the_round() -> None:
    assert content(evolver().run(guided())) == content(evolver().run(guided()))
    assert content(evolver().run(guided())) != content(evolver().run(guided(seed=4)))
    used = evolver()
    used.run(guided(seed=9))
    assert content(used.run(guided())) == content(evolver().run(guided()))


def test_accepted_tasks_store_their_provenance_and_parents() -> None:
    round = guided()
    result = evolver().run(round)
    assert result.accepted
    by_id = {c.id: c for c in round.contexts}
    drafts = {v.draft_id for v in result.verdicts if v.accepted}
    for task in result.accepted:
        source = by_id[task.provenance["context"]]
        assert task.provenance["kind"] == "boundary"
        assert task.provenance["round"] == "round-4"
        assert task.provenance["draft"] in drafts
        assert task.parents[0] == source.task.id
        assert task.origin == "evolved"
        assert task.split is Split.TRAIN
    assert len({task.id for task in result.accepted}) == len(result.accepted)
    assert [v.task_id for v in result.verdicts if v.accepted] == [t.id for t in result.accepted]


def test_known_tasks_are_not_accepted_again() -> None:
    first = evolver().run(guided())
    again = evolver().run(guided().model_copy(update={"known": first.accepted}))
    assert again.accepted == ()
    rejected = {v.gate for v in again.verdicts}
    assert rejected <= {"near_duplicate", "duplicate", "split_leak"}


def test_the_draft_budget_is_divided_evenly_among_contexts() -> None:
    for at_once in (1, 3, 9):
        eager = Bringing(Exploration(("no draft",) * 50, 1), at_once)
        result = GatedEvolver(BENCHMARK, eager).run(guided(n=4, budget=10))
        shares = [sum(v.context_id == context(i).id for v in result.verdicts) for i in range(4)]
        assert len(result.verdicts) == 10
        assert shares == [3, 3, 2, 2]


def test_an_unguided_round_accepts_as_many_tasks_as_requested() -> None:
    result = evolver().run(Round.unguided(12, seed=1))
    assert len(result.accepted) == 12
    assert {task.provenance["kind"] for task in result.accepted} == {"unguided"}
    sources = {task.parents[0] for task in result.accepted}
    assert sources <= {task.id for task in TRAIN}
    assert len(sources) > 6
    few = evolver(native=TRAIN[:1]).run(Round.unguided(12, seed=1))
    assert {task.parents[0] for task in few.accepted} == {TRAIN[0].id}
    with pytest.raises(ConfigError, match="no training task"):
        evolver(native=()).run(Round.unguided(2))


def test_an_unguided_round_without_drafts_ends() -> None:
    result = GatedEvolver(BENCHMARK, Bringing(Exploration((), 5))).run(Round.unguided(3))
    assert (result.accepted, result.verdicts, result.env_steps) == ((), (), 5 * 12)


def test_an_interrupted_round_resumes_after_its_last_verdict() -> None:
    whole = evolver().run(guided())
    seen: list[Verdict] = []

    def stop_at_three(verdict: Verdict) -> None:
        seen.append(verdict)
        if len(seen) == 3:
            raise KeyboardInterrupt

    stopped = evolver(on_verdict=stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(guided())
    assert content(stopped.run(guided())) == content(whole)
    assert tuple(seen) == whole.verdicts


class LosesEngines(ToyBenchmark):
    """Its engine fails on the first builds of each draft."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tried: Counter[str] = Counter()

    def build(self, draft: Draft) -> Task:
        self.tried[draft.id] += 1
        if self.tried[draft.id] <= self.failures:
            raise EnvBackendError("the engine is gone")
        return super().build(draft)


def test_a_draft_is_retried_after_a_lost_engine() -> None:
    benchmark = LosesEngines(MAX_ATTEMPTS - 1)
    result = GatedEvolver(benchmark, ScriptedExplorer(benchmark)).run(guided())
    assert content(result) == content(evolver().run(guided()))
    assert set(benchmark.tried.values()) == {MAX_ATTEMPTS}


def test_an_engine_lost_in_every_attempt_stops_the_round() -> None:
    benchmark = LosesEngines(MAX_ATTEMPTS)
    lost = GatedEvolver(benchmark, ScriptedExplorer(benchmark))
    with pytest.raises(EnvBackendError, match="the engine is gone"):
        lost.run(guided())
    assert list(benchmark.tried.values()) == [MAX_ATTEMPTS]
    benchmark.failures = 0
    assert content(lost.run(guided())) == content(evolver().run(guided()))


def test_contexts_are_explored_in_batches_of_the_explorers_concurrency() -> None:
    record = Explored(context=context(), problems=("nothing was found",))
    several = Bringing(Exploration((), 5, record), concurrency=2)
    result = GatedEvolver(BENCHMARK, several).run(guided(n=5))
    assert [len(batch) for batch in several.batches] == [2, 2, 1]
    explored = [c.model_copy(update={"known": ()}) for batch in several.batches for c in batch]
    assert explored == list(guided(n=5).contexts)
    assert result.explored == (record,) * 5
    assert result.env_steps == 25


def test_the_explorers_concurrency_does_not_change_the_result() -> None:
    class AtOnce(ScriptedExplorer):
        concurrency = 3

    at_once = GatedEvolver(BENCHMARK, AtOnce(BENCHMARK))
    assert content(at_once.run(guided(budget=40))) == content(evolver().run(guided(budget=40)))


class Thrifty(Bringing):
    """An explorer that may ask nothing more from a context on."""

    def __init__(self, last: int, concurrency: int) -> None:
        super().__init__(Exploration(("no draft",) * 2, 1), concurrency)
        self.last = last

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        before = sum(map(len, self.batches))
        super().explore(contexts, rngs)
        return [
            self.found if before + i < self.last else Exploration(skipped=BUDGET)
            for i in range(len(contexts))
        ]


def test_a_guided_round_with_a_spent_budget_keeps_its_verdicts() -> None:
    explorer, seen = Thrifty(last=3, concurrency=2), list[Verdict]()
    result = GatedEvolver(BENCHMARK, explorer, on_verdict=seen.append).run(guided(n=6))
    skipped = [verdict for verdict in result.verdicts if verdict.gate == "advisor"]
    assert [len(batch) for batch in explorer.batches] == [2, 2]  # nobody else was asked
    assert [(v.draft_id, v.reason) for v in skipped] == [("", "budget")] * 3
    assert [v.context_id for v in skipped] == [context(i).id for i in (3, 4, 5)]
    assert len(result.verdicts) == 3 * 2 + 3
    assert seen == list(result.verdicts)


def test_an_unguided_round_with_a_spent_budget_ends() -> None:
    explorer = Thrifty(last=3, concurrency=2)
    result = GatedEvolver(BENCHMARK, explorer).run(Round.unguided(30))
    assert [verdict.gate for verdict in result.verdicts if not verdict.draft_id] == ["advisor"]
    assert len(result.verdicts) == 3 * 2 + 1


def test_each_exploration_and_draft_of_a_round_has_its_own_scope() -> None:
    opened = list[str]()

    @contextmanager
    def scope(name: str) -> Iterator[Spent]:
        opened.append(name)
        yield lambda: {"summary": Usage(calls=len(opened))}
        opened.append("end of " + name)

    two = Bringing(Exploration(("no draft",)), concurrency=2)
    result = GatedEvolver(BENCHMARK, two, scope=scope).run(guided(n=3))
    names = ["explore-0", "draft-0", "draft-1", "explore-2", "draft-2"]
    inside = [f"{end}round-4/{name}" for name in names for end in ("", "end of ")]
    assert opened == ["round-4", *inside, "end of round-4"]
    assert result.usage == {"summary": Usage(calls=11)}  # as it was when the round was over


def test_a_draft_retried_after_an_engine_failure_reopens_its_scope() -> None:
    opened = list[str]()

    @contextmanager
    def scope(name: str) -> Iterator[Spent]:
        opened.append(name)
        yield dict

    benchmark = LosesEngines(failures=1)
    fragile = GatedEvolver(benchmark, ScriptedExplorer(benchmark), scope=scope)
    assert content(fragile.run(guided(n=1))) == content(evolver().run(guided(n=1)))
    built = set(benchmark.tried)
    assert len(built) > 0
    again = [name for name, count in Counter(opened).items() if count == 2]
    assert len(again) == len(built)
    assert all(name.startswith("round-4/draft-") for name in again)


def test_contexts_list_the_instructions_of_known_related_tasks() -> None:
    source = TRAIN[0]
    pool = (source, TRAIN[1], TRAIN[2].model_copy(update={"parents": (source.id,)}))
    idle = Bringing(Exploration())
    GatedEvolver(BENCHMARK, idle).run(guided(n=1).model_copy(update={"known": pool}))
    assert idle.batches[0][0].known == (TRAIN[2].instruction,)


def test_tasks_accepted_in_a_round_are_known_to_its_later_explorations() -> None:
    n_known = list[int]()

    class Known(ScriptedExplorer):
        def explore(
            self, contexts: Sequence[Context], rngs: Sequence[Generator]
        ) -> Sequence[Exploration]:
            n_known.extend(len(context.known) for context in contexts)
            return super().explore(contexts, rngs)

    result = GatedEvolver(BENCHMARK, Known(BENCHMARK), native=TRAIN[:1]).run(Round.unguided(6))
    assert len(result.accepted) == 6
    assert n_known[0] == 0
    assert 0 < n_known[-1] <= 6


def test_tasks_on_hold_are_returned_apart_from_accepted_ones() -> None:
    hold = GatesConfig.model_validate({"hold": {"benchmarks": ["toy"]}})
    plain = evolver().run(guided())
    waiting = evolver(gates_of=partial(default_gates, settings=hold)).run(guided())
    assert plain.accepted
    assert waiting.held == plain.accepted
    assert waiting.accepted == ()
    assert {task.provenance["round"] for task in waiting.held} == {"round-4"}
    verdicts = [verdict for verdict in waiting.verdicts if verdict.gate == "hold"]
    assert [verdict.task_id for verdict in verdicts] == [task.id for task in waiting.held]
    assert RoundResult.model_validate_json(waiting.model_dump_json()) == waiting


def test_skipped_contexts_do_not_count_as_judged_drafts() -> None:
    draft, left_out = (Verdict(draft_id=id, accepted=False, gate="build") for id in ("d", ""))
    result = RoundResult(round_id="round-1", verdicts=(draft, left_out, draft))
    assert result.draft_verdicts == (draft, draft)
    curriculum = CurriculumConfig(initial_size=2).make(TRAIN[:2])
    outcome = RoundResult(round_id="round-1", accepted=(TRAIN[3],), verdicts=(draft, left_out))
    curriculum.apply(outcome)
    assert curriculum.metrics()["pass_rate"] == 1.0
