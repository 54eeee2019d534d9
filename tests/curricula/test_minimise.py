"""References lose what they do not need, and keep what shows what they need."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coevo_gym.core.benchmark import Clue, Effect, Evidence, Replay
from coevo_gym.core.evolution import Draft, digest
from coevo_gym.core.task import Task
from coevo_gym.curricula.gates.minimise import minimise_solution
from tests.curricula.episodes import TRAIN
from tests.toy import ToyBenchmark

FOUND = '[{"title": "Low Tide", "id": 12}, {"title": "Red Sky", "id": 7}]'


class Shelf(ToyBenchmark):
    """Solved by ``end`` after ``take 12``, or after ``answer 2`` alone; ``list`` shows a list."""

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.answers = tuple(answers)
        self.steps = 0

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        basket, closed = set[str](), False
        errors, scores, states = list[str](), [0.0], [digest([])]
        effects, observations = list[Effect](), list[str]()
        for action in actions:
            self.steps += 1
            verb, _, thing = action.partition(" ")
            if verb == "take":
                basket.add(thing)
            if verb == "put":
                basket.discard(thing)
            closed |= verb in ("end", "answer")
            errors.append("no such thing" if verb == "fail" else "")
            observations.append(FOUND if verb == "list" else "")
            states.append(digest(sorted(basket)))
            quiet = Effect.READ if verb == "list" else Effect.NOTHING
            quiet = Effect.CLOSED if verb in ("end", "answer") else quiet
            effects.append(Effect.CHANGED if states[-1] != states[-2] else quiet)
            scores.append(float(closed and (basket == {"12"} or verb == "answer")))
            if to_error and errors[-1]:
                break
        return Replay(
            tuple(errors),
            tuple(scores),
            states[-1],
            tuple(effects),
            tuple(states),
            tuple(observations),
        )

    def evidence(self, task: Task) -> Evidence:
        text = "Take Low Tide."
        return Evidence(text, (Clue("a title", ("Low Tide",), text),), self.answers)


def shortened(steps: Sequence[str], benchmark: Shelf | None = None) -> tuple[str, ...]:
    benchmark = benchmark or Shelf()
    task = TRAIN[0].model_copy(update={"solution": tuple(steps)})
    draft = Draft(
        benchmark="toy",
        scenario=task.scenario,
        instruction=task.instruction,
        world=task.world,
        solution=task.solution,
    )
    result = minimise_solution(benchmark, draft, task)
    assert result.env_steps == benchmark.steps
    assert result.task.solution == result.steps
    assert len(result.steps) + len(result.dropped) == len(steps)
    assert result.task.id == task.id
    return result.steps


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ("take 12 / end", "take 12 / end"),
        ("think / take 12 / think / end", "take 12 / end"),
        ("take 3 / put 3 / take 12 / end", "take 12 / end"),
        ("take 12 / put 12 / take 12 / end", "take 12 / end"),
        ("list / take 12 / end", "list / take 12 / end"),  # the words do not tell the number
        ("list / list / take 12 / end", "list / take 12 / end"),
        ("take 12 / list / end", "take 12 / end"),
        ("take 12 / fail / end", "take 12 / fail / end"),  # wrong, and so for another gate
        ("take 12 / end / end", "take 12 / end / end"),  # solved too early: likewise
    ],
)
def test_a_reference_is_shortened_to_the_steps_it_needs(steps: str, left: str) -> None:
    assert shortened(steps.split(" / ")) == tuple(left.split(" / "))


def test_a_list_from_which_the_answer_can_be_counted_is_not_removed() -> None:
    assert shortened(["list", "answer 2"], Shelf(answers=["2"])) == ("list", "answer 2")
    assert shortened(["list", "answer 5"], Shelf(answers=["5"])) == ("answer 5",)


def test_the_number_of_replayed_steps_is_limited() -> None:
    benchmark = Shelf()
    steps = (*(f"take {n}" for n in range(40)), "end")
    shortened(steps, benchmark)
    assert benchmark.steps <= 24 * len(steps)
