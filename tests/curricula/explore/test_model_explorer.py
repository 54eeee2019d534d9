"""The explorer with a model as a whole, on the toy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError
from coevo_gym.core.evolution import Context, Round, RoundResult
from coevo_gym.core.seams import Completion, Finish, Prompt, Request
from coevo_gym.core.spend import Caps
from coevo_gym.core.task import OPEN, Split, Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.model_explorer import ModelExplorer
from coevo_gym.curricula.growth.contexts import context_of
from coevo_gym.testing.scripted_models import ScriptedPolicy
from tests.curricula.episodes import HELD_OUT, TRAIN, trajectory
from tests.curricula.explore.presser import TOY_PROMPT, Presser
from tests.faults import break_engines
from tests.hostile import HostilePolicy
from tests.tapes.pipeline import pipeline
from tests.toy import BENCHMARK, ToyBenchmark, ToyVerifier

KINDS = ("forgetting", "boundary", "rare", "coverage")


def context(index: int = 0, **fields: Any) -> Context:
    rollout = trajectory(TRAIN[index], 0.0, ("press", "press", "done"), last_observation="Over.")
    base = context_of(KINDS[index % 4], TRAIN[index], rollout, "A weakness.")
    return base.model_copy(update=fields)


def guided(n: int = 4, budget: int = 30, **fields: Any) -> Round:
    contexts = tuple(context(index) for index in range(n))
    return Round(id="round-4", contexts=contexts, budget=budget, seed=3, **fields)


def toy(policy: Any, **settings: Any) -> GatedEvolver:
    return pipeline("toy", policy, prompt=TOY_PROMPT, **settings)


def content(result: RoundResult) -> dict[str, Any]:
    return result.model_dump(exclude={"seconds"})


class Spoiling:
    """A model that gives something else than its better self where it is told to.

    Args:
        better: the other one.
        spoilt: by the name of an inquiry's prompt, or ``walk``, how to answer instead: in turn, and
            the last one for ever; None to leave the answer as it is.
    """

    def __init__(self, better: ScriptedPolicy, **spoilt: Sequence[str | Completion | None]) -> None:
        self.better = better
        self.spoilt = {name: list(answers) for name, answers in spoilt.items()}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        assert isinstance(request, Prompt)
        (completion,) = self.better.generate([request])
        room, _, name = request.template.partition("@")[0].rpartition("/")
        answers = self.spoilt.get(name if room else "walk", [None])
        instead = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(instead, Completion):
            return instead
        return completion if instead is None else completion._replace(text=instead)


def problems(result: RoundResult) -> list[str]:
    return [text for explored in result.explored for text in explored.problems]


def test_a_round_turns_rollouts_into_accepted_tasks() -> None:
    policy = Presser().policy()
    result = toy(policy).run(guided())
    assert len(result.accepted) >= 3
    assert {task.provenance["kind"] for task in result.accepted} <= set(KINDS)
    assert [explored.context.id for explored in result.explored] == [
        context(i).id for i in range(4)
    ]
    for explored in result.explored:
        assert explored.brief is not None
        assert explored.problems == ()
        assert [walk.number for walk in explored.walks] == [0, 1]
        assert {walk.context_id for walk in explored.walks} == {explored.context.id}
        assert all(walk.exchanges[-1].action == "done" for walk in explored.walks)
    accepted = next(verdict for verdict in result.verdicts if verdict.accepted)
    assert accepted.proposal["confidence"] == 0.9
    assert result.usage.keys() == {"summary", "explore", "abstract"}
    assert sum(usage.calls for usage in result.usage.values()) == len(policy.asked)
    assert result.usage["summary"].calls == 4


def test_requests_of_each_stage_are_sent_in_batches() -> None:
    batches: list[Counter[str]] = []

    class Watching(ScriptedPolicy):
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            batches.append(Counter(r.purpose or "walk" for r in requests if isinstance(r, Prompt)))
            return super().generate(requests)

    presser = Presser()
    policy = Watching([("Why this attempt", '{"summary": "s"}'), ("Walk 1", presser.ideas)])
    policy._rules += ScriptedPolicy([("", presser.act)])._rules
    toy(policy, concurrency=3).run(guided())
    assert [dict(batch) for batch in batches] == [
        {"summary": 3}, *[{"walk": 3}] * 8, {"abstract": 3},
        {"summary": 1}, *[{"walk": 1}] * 8, {"abstract": 1},
    ]  # fmt: skip


def test_equal_answers_give_equal_rounds() -> None:
    first, second = (toy(Presser().policy(), concurrency=3).run(guided()) for _ in range(2))
    assert content(first) == content(second)


def test_an_unguided_round_explores_open_tasks() -> None:
    policy = Presser().policy()
    result = toy(policy).run(Round.unguided(12, seed=1))
    assert len(result.accepted) == 12
    sources = {task.instruction for task in TRAIN}
    assert not sources & {e.context.task.instruction for e in result.explored if e.brief}
    assert {explored.context.kind for explored in result.explored} == {"unguided"}
    assert {task.origin for task in result.accepted} == {"evolved"}
    assert all(explored.context.task.origin != OPEN for explored in result.explored)
    walks = [prompt for prompt in policy.asked if "Pressed: " in prompt.messages[-1].content]
    contents = {p.messages[1].content for p in walks if "Try out the buttons" in str(p.messages)}
    assert contents
    assert "summary" not in result.usage


def test_stages_with_unusable_answers_fall_back_on_rules() -> None:
    spoilt = Spoiling(Presser().policy(), summary=["no JSON"], abstract=["{}"])
    result = toy(spoilt).run(guided())
    texts = problems(result)
    assert (
        sum(text.startswith("The rollout was summarised by rule: schema: ") for text in texts) == 4
    )
    assert sum("was turned into drafts by rule: schema: tasks: " in text for text in texts) == 8
    assert all(e.brief and e.brief.summary.startswith("A weakness.") for e in result.explored)
    assert {verdict.proposal == {} for verdict in result.verdicts} == {True}
    assert len(result.verdicts) == 8
    assert result.accepted


def test_the_repair_of_an_answer_counts_as_a_call() -> None:
    spoilt = Spoiling(Presser().policy(), summary=["no JSON", None], abstract=["{}", None])
    result = toy(spoilt).run(guided(n=1))
    assert result.usage["summary"].calls == 2


LOST = Completion("The server is gone.", None, Finish.LOST)


def test_a_context_without_any_walk_is_skipped_with_a_verdict() -> None:
    gone = Spoiling(Presser().policy(), walk=[LOST])
    result = toy(gone).run(guided())
    assert [(v.gate, v.draft_id, v.reason) for v in result.verdicts] == [
        ("advisor", "", "the model gave no answer")
    ] * 4
    assert result.usage["summary"].calls == 4
    assert "abstract" not in result.usage
    assert all(explored.brief for explored in result.explored)


def test_walks_cut_short_by_a_lost_model_are_still_used() -> None:
    gone = Spoiling(Presser().policy(), walk=[None, None, LOST])
    result = toy(gone, walks=1).run(guided(n=2))
    assert problems(result) == ["Walk 1 ended after 1 steps: the model gave no answer"] * 2
    assert all(v.gate != "advisor" for v in result.verdicts)


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 8, 13, 21, 34, 50])
def test_a_round_stays_within_its_call_budget_and_keeps_accepted_tasks(calls: int) -> None:
    policy = Presser().policy()
    caps = Caps(max_calls_per_round=calls)
    result = toy(policy, caps=caps, concurrency=2, walks=1).run(guided(n=8))
    assert len(policy.asked) <= calls
    assert sum(usage.calls for usage in result.usage.values()) == len(policy.asked)
    skipped = [verdict for verdict in result.verdicts if verdict.gate == "advisor"]
    drafts = [verdict for verdict in result.verdicts if verdict.draft_id]
    assert len(result.verdicts) == len(drafts) + len(skipped)
    ids = {v.context_id for v in result.verdicts}
    explored = {e.context.id for e in result.explored if any(w.exchanges for w in e.walks)}
    assert ids | explored == {context(i).id for i in range(8)}
    assert {verdict.reason for verdict in skipped} <= {"budget"}
    assert (calls < 40) == bool(skipped)
    assert bool(result.accepted) == (calls > 2)


def test_an_unguided_round_stays_within_its_call_budget() -> None:
    policy = Presser().policy()
    result = toy(policy, caps=Caps(max_calls_per_round=30)).run(Round.unguided(50))
    assert len(policy.asked) == 30
    assert 0 < len(result.accepted) < 50


class Swapped:
    """Whoever is asked now."""

    def __init__(self) -> None:
        self.policy: Any = None

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        completions: list[Completion] = self.policy.generate(requests)
        return completions


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        pytest.param(250 * i, 3 + 3 * i, marks=[] if i in (0, 3, 7) else pytest.mark.slow)
        for i in range(8)
    ],
)
def test_a_round_with_hostile_answers_ends_with_a_valid_result(first: int, calls: int) -> None:
    gates: Counter[str] = Counter()
    asked = Swapped()
    caps = Caps(max_calls_per_round=calls)
    evolver = toy(asked, caps=caps, walks=1, max_steps=5, concurrency=2)
    for seed in range(first, first + 250):
        asked.policy = HostilePolicy(seed, Presser().policy(), share=(0.0, 0.5, 0.9)[seed % 3])
        one = Round.unguided(1, seed=seed) if seed % 4 == 0 else guided(n=1 + seed % 2, budget=4)
        result = evolver.run(one)
        RoundResult.model_validate_json(result.model_dump_json())
        drafts = [verdict for verdict in result.verdicts if verdict.draft_id]
        skipped = [verdict for verdict in result.verdicts if verdict.gate == "advisor"]
        assert len(result.verdicts) == len(drafts) + len(skipped)
        assert len(drafts) <= one.budget
        assert sum(usage.calls for usage in result.usage.values()) <= calls
        assert all(task.split is Split.TRAIN for task in result.accepted)
        gates.update(verdict.gate for verdict in result.verdicts)
    assert {"", "advisor", "split_leak"} <= gates.keys()  # all sorts came


def test_exploring_from_a_held_out_task_is_refused() -> None:
    leak = context(task=HELD_OUT[0])
    disguised = context(task=HELD_OUT[0].model_copy(update={"split": Split.TRAIN}))
    policy = Presser().policy()
    explorer = toy(policy).explorer
    for bad in (leak, disguised):
        with pytest.raises(SplitLeakError, match="explore from"):
            explorer.explore([context(), bad], [np.random.default_rng(n) for n in range(2)])
    assert policy.asked == []


SECRET = "plum-and-violet"


def poisoned(task: Task) -> Task:
    """A task whose ground truth is known by its looks."""
    return task.model_copy(
        update={
            "verifier": ToyVerifier(order=(SECRET,)),
            "solution": (f"press {SECRET}", "done"),
            "provenance": {"made": SECRET},
        }
    )


def test_no_prompt_of_a_round_contains_ground_truth_or_a_held_out_task() -> None:
    tasks = [poisoned(task) for task in TRAIN[:6]]
    native: dict[str, Any] = {"evolver": {"native": tasks}}
    asked: list[Prompt] = []
    for spoilt in ({}, {"summary": ["no JSON", None], "abstract": ["no JSON"]}):
        policy = Presser().policy()
        evolver = toy(Spoiling(policy, **spoilt), **native)
        contexts = tuple(context(n, task=task) for n, task in enumerate(tasks))
        round = Round(id="round-1", contexts=contexts, budget=99, seed=1, known=tuple(tasks))
        assert evolver.run(round).verdicts
        assert evolver.run(Round.unguided(4, seed=2)).verdicts
        asked += policy.asked
    texts = [message.content for prompt in asked for message in prompt.messages]
    assert len(texts) > 100
    assert not [text for text in texts if SECRET in text]
    held_out = {task.instruction for task in HELD_OUT}
    assert not [text for text in texts if any(one in text for one in held_out)]


def test_a_round_survives_a_lost_engine_without_counting_requests_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = toy(Presser().policy()).run(guided())
    times = iter([False] * 5 + [True] + [False] * 10_000)
    break_engines(monkeypatch, "_act", lambda env: next(times))
    mended = toy(Presser().policy()).run(guided())
    assert mended.usage["summary"].calls == whole.usage["summary"].calls
    broken = toy(Presser().policy())
    break_engines(monkeypatch, "_act", lambda env: True)
    with pytest.raises(EnvBackendError):
        broken.run(guided())


def test_a_benchmark_without_draft_or_an_unknown_prompt_is_refused() -> None:
    class Old:
        def __getattr__(self, name: str) -> Any:
            if name in ("open", "draft"):
                raise AttributeError(name)
            return getattr(BENCHMARK, name)

    class Nobody:
        def act(self, views: Any) -> Any: ...

        def ask(self, inquiries: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"cannot explore toy: the benchmark has no draft\(\)"):
        ModelExplorer(Old(), Nobody(), Nobody(), prompts="coevolve")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no prompt 'nowhere/guide'"):
        ModelExplorer(BENCHMARK, Nobody(), Nobody(), prompts="nowhere")


def test_rules_draft_from_walks_that_the_model_did_not_abstract() -> None:
    class Watched(ToyBenchmark):
        def __init__(self) -> None:
            self.walks: list[Trajectory] = []

        def drafts(self, trace: Trajectory, context: Context, rng: Any) -> Any:
            self.walks.append(trace)
            return super().drafts(trace, context, rng)

    evolver = toy(Spoiling(Presser().policy(), abstract=[None, "no JSON"]), concurrency=1)
    assert isinstance(evolver.explorer, ModelExplorer)
    watched = Watched()
    evolver.explorer.benchmark = watched
    result = evolver.run(guided(n=2))
    assert [trace.task_id for trace in watched.walks] == [TRAIN[1].id] * 2
    assert [bool(verdict.proposal) for verdict in result.verdicts] == [True, True, False, False]
