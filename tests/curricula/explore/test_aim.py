"""Explorers that look for something: where they begin, how they go on, and what they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.evolution import Context, Draft, Proposal, Round
from coevo_gym.core.task import OPEN, Split
from coevo_gym.core.trajectory import Trajectory, View
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import Found, ScriptedExplorer, select_fittest
from coevo_gym.curricula.explore.guide import Aim, Guide, hides_request, task_to_explore
from coevo_gym.envs.tags import tags_of
from coevo_gym.prompts.template import load_cue
from tests.curricula.episodes import HELD_OUT, TRAIN
from tests.curricula.explore.presser import TOY_PROMPT, Presser
from tests.hostile import HostilePolicy
from tests.quick import slow_for
from tests.tapes.pipeline import pipeline
from tests.toy import BENCHMARK, ToyBenchmark

RNG = np.random.default_rng


def aimed(index: int = 0, target: tuple[str, ...] | None = None) -> Context:
    task = TRAIN[index]
    return Context(kind="target", task=task, target=tags_of(task) if target is None else target)


def draft(*colours: str) -> Draft:
    order = "-".join(colours)
    world = TRAIN[0].world
    return Draft(benchmark="toy", scenario=order, instruction="x", world=world, solution=())


# Going there.


def test_choices_that_mention_the_target_are_drawn_more_often() -> None:
    aim = Aim(lambda view: (), ("object:CellPhone", "goal:heat", "scene:FloorPlan12"))
    says = ("take cellphone 1", "heat cellphone 2 with microwave 1", "go to drawer 12", "use cell")
    assert aim.weights(says).tolist() == [4.0, 16.0, 1.0, 4.0]
    draws = [aim.draw(says, RNG(seed)) for seed in range(200)]
    assert draws.count(says[1]) > draws.count(says[0]) > draws.count(says[2])


def test_choices_are_taken_from_a_view_whose_instruction_is_the_target() -> None:
    seen: list[View] = []
    aim = Aim(lambda view: seen.append(view) or ("a",), ("family:red mugs", "option:size"))  # type: ignore[func-returns-value]
    aim.choices(View("Look around.", "You are here.", {"admissible": ()}))
    (view,) = seen
    assert view.instruction == "red mugs, size"
    assert view.observation == "You are here."


def test_a_targeted_walk_starts_in_an_open_task_and_keeps_one_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks: list[Trajectory] = []
    drafts = ToyBenchmark.drafts

    def watched(
        self: ToyBenchmark, trace: Trajectory, context: Context, rng: Generator
    ) -> list[Draft]:
        walks.append(trace)
        return [*drafts(self, trace, context, rng), *drafts(self, trace, context, rng)]

    monkeypatch.setattr(ToyBenchmark, "drafts", watched)
    (exploration,) = ScriptedExplorer(BENCHMARK, rounds=3).explore([aimed()], [RNG(0)])
    (walk,) = walks  # one draft is kept, so one walk is enough
    free = BENCHMARK.open(TRAIN[0])
    assert (walk.task_id, free.origin) == (free.id, OPEN)
    assert exploration.env_steps == len(walk.steps)
    assert len(exploration.drafts) == 1
    walks.clear()
    for seed in range(9):
        ScriptedExplorer(BENCHMARK, max_steps=5).explore([aimed()], [RNG(seed)])
    assert max(len(walk.steps) for walk in walks) == 2  # half as far
    walks.clear()
    plain = Context(kind="unguided", task=TRAIN[0])
    (exploration,) = ScriptedExplorer(BENCHMARK, rounds=3).explore([plain], [RNG(0)])
    assert [walk.task_id for walk in walks] == [TRAIN[0].id] * 3
    assert len(exploration.drafts) == 6


def test_a_benchmark_without_open_tasks_is_explored_from_the_task_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert task_to_explore(BENCHMARK, Context(kind="unguided", task=TRAIN[0])) is TRAIN[0]
    monkeypatch.delattr(ToyBenchmark, "open")
    assert task_to_explore(BENCHMARK, aimed()) is TRAIN[0]


@pytest.mark.parametrize("held_out", HELD_OUT[:2], ids=lambda task: task.split)
def test_a_targeted_walk_from_a_held_out_task_is_refused(held_out: Any) -> None:
    context = aimed().model_copy(update={"task": held_out})
    with pytest.raises(SplitLeakError):
        ScriptedExplorer(BENCHMARK).explore([context], [RNG(0)])
    relabelled = held_out.model_copy(update={"split": Split.TRAIN})
    with pytest.raises(SplitLeakError):
        ScriptedExplorer(BENCHMARK).explore(
            [context.model_copy(update={"task": relabelled})], [RNG(0)]
        )


# What is kept.


def proposal(*colours: str, confidence: float = 0.5) -> Proposal:
    actions = tuple(f"press {colour}" for colour in colours)
    return Proposal(
        description="x", turns=("Press.",), actions=(*actions, "done"), confidence=confidence
    )


@pytest.mark.parametrize(
    ("candidates", "best"),
    [
        ([draft("red", "blue", "blue"), draft("green", "blue", "amber")], 1),
        ([draft("green", "blue", "white"), draft("green", "blue", "blue")], 1),  # no foreign tag
        ([draft("green", "blue", "blue"), draft("green", "blue", "blue")], 0),
        (["not read yet", draft("black", "red", "white")], 0),  # that is no training scenario
        (["not read yet", draft("white", "white", "red")], 1),  # nothing fits; one is a task
        (["not read yet", draft("green", "green", "white")], 1),
        ([proposal(), proposal("green", "blue", "amber")], 1),
        (
            [proposal("green", "blue", "red"), proposal("green", "blue", "red", confidence=0.9)],
            1,
        ),
    ],
)
def test_the_candidate_that_fits_the_target_best_is_selected(
    candidates: list[Found], best: int
) -> None:
    context = aimed(target=("colour:amber", "colour:blue", "first:green"))
    assert select_fittest(candidates, context, BENCHMARK) == [candidates[best]]
    untargeted = Context(kind="boundary", task=TRAIN[0])
    assert select_fittest(candidates, untargeted, BENCHMARK) is candidates


def test_a_proposal_that_cannot_be_drafted_fits_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = proposal("green", "blue").model_copy(update={"turns": ("one", "two")})
    good = proposal("red", "blue", "blue")
    assert select_fittest([bad, good], aimed(target=("colour:blue",)), BENCHMARK) == [good]


# With a model.


def guide_text(context: Context) -> str:
    (cue,) = Guide("coevolve/guide", "coevolve/target", n_actions=18)(context, None)
    assert cue.id == load_cue("coevolve/target").label
    return cue.text


def test_prompts_contain_the_target_but_not_the_task_it_comes_from() -> None:
    text = guide_text(aimed(target=("file_kind:note book", "goal:heat")))
    assert "- file kind: note book" in text
    assert "- goal: heat" in text
    policy = Presser().policy()
    result = pipeline("toy", policy, prompt=TOY_PROMPT).run(
        Round(id="round-2", contexts=(aimed(0), aimed(1)), budget=9, seed=1)
    )
    asked = "\n".join(message.content for prompt in policy.asked for message in prompt.messages)
    assert TRAIN[0].instruction not in asked
    assert f"- first: {TRAIN[0].scenario.partition('-')[0]}" in asked
    assert "Why this attempt" not in asked  # nothing was done there that a model could study
    # There are two walks each, and one proposal of each context is kept.
    assert len(result.draft_verdicts) == 2
    for explored in result.explored:
        assert len(explored.walks) == 2
        assert hides_request(explored.context)


def test_hostile_answers_on_a_targeted_walk_raise_no_exception() -> None:
    round = Round(id="round-2", contexts=tuple(aimed(i) for i in range(6)), budget=9, seed=1)
    result = pipeline("toy", HostilePolicy(seed=0), prompt=TOY_PROMPT).run(round)
    assert len(result.draft_verdicts) <= 6


# Rounds of targets.


def test_a_round_of_targets_ends_with_enough_accepted_tasks() -> None:
    contexts = tuple(aimed(index) for index in range(20))
    round = Round(id="round-0", contexts=contexts, n_enough=5, budget=20, seed=0)
    result = GatedEvolver(BENCHMARK, ScriptedExplorer(BENCHMARK)).run(round)
    assert len(result.accepted) == 5
    assert len(result.draft_verdicts) < 20
    places = {context.id: place for place, context in enumerate(contexts)}
    order = [places[verdict.context_id] for verdict in result.verdicts]
    assert order == sorted(set(order))  # one draft a context, and the first contexts first
    whole = GatedEvolver(BENCHMARK, ScriptedExplorer(BENCHMARK)).run(
        round.model_copy(update={"n_enough": 0})
    )
    assert len(whole.accepted) > 5
    assert whole.accepted[:5] == result.accepted


def test_rounds_without_targets_are_stored_in_the_format_of_earlier_versions() -> None:
    plain = Round(id="round-1", contexts=(Context(kind="rare", task=TRAIN[0]),), budget=1, seed=0)
    dumped = plain.model_dump(mode="json")
    assert dumped.keys() == {"id", "contexts", "n_unguided", "budget", "seed"}
    assert "target" not in dumped["contexts"][0]
    assert "target" not in plain.contexts[0].model_dump()
    round = plain.model_copy(update={"contexts": (aimed(),), "n_enough": 3})
    assert Round.model_validate_json(round.model_dump_json()) == round


@pytest.mark.parametrize("name", slow_for(["webshop", "bfcl", "alfworld", "appworld"], "appworld"))
def test_an_explorer_finds_tasks_with_half_of_the_target_tags_or_more(
    name: str, engine: Callable[[str], None]
) -> None:
    engine(name)
    benchmark = get_benchmark(name)
    native = benchmark.tasks(Split.TRAIN)
    starts = native[:: max(1, len(native) // 4)][:4]
    contexts = tuple(Context(kind="target", task=t, target=tags_of(t)) for t in starts)
    round = Round(id="round-1", contexts=contexts, budget=4, seed=0)
    result = GatedEvolver(benchmark, ScriptedExplorer(benchmark)).run(round)
    targets = {context.id: {*context.target} for context in contexts}
    assert result.accepted
    for task in result.accepted:
        target = targets[str(task.provenance["context"])]
        assert 2 * len({*tags_of(task)} & target) >= len(target), (tags_of(task), target)
        assert task.parents[0] in {start.id for start in starts}
