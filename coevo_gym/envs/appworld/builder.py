"""From a draft to a proven task, and from a walk to drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from numpy.random import Generator

from coevo_gym.benchmark import Replay
from coevo_gym.envs.appworld.engine import World
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.appworld.judge import compared, grade
from coevo_gym.envs.appworld.moves import (
    FAILED,
    FINISH,
    Listed,
    Walk,
    act_code,
    answer_code,
    look_code,
    sign_in,
)
from coevo_gym.envs.appworld.tasks import (
    AppWorldVerifier,
    AppWorldWorld,
    root_of,
    scenario_of,
    split_of,
)
from coevo_gym.errors import BenchmarkNotInstalled, BuildError, DataError, TaskError
from coevo_gym.evolution import Context, Draft, digest
from coevo_gym.task import Split, Task, canonical_json
from coevo_gym.trajectory import Trajectory

MAX_ACTS = 2
"""Of a draft from a walk."""
_ASKED = ("{}.", "Please {}.", "Could you {}?", "I would like you to {}.")


class Run(NamedTuple):
    """What actions come to in a fresh world.

    Attributes:
        errors: of each action, "" where its code ran.
        completed: after each action, whether the task had been completed.
        changes: what the databases differ by in the end, by model.
        answer: the answer that was given, as a JSON value; None for none.
    """

    errors: tuple[str, ...]
    completed: tuple[bool, ...]
    changes: dict[str, Any]
    answer: Any


def build(draft: Draft) -> Task:
    """Run the draft's actions, and ask for what they changed and answered.

    Raises:
        BuildError: if the world is not one to train in; if an action fails; if the task is not
            completed by the last action, and by it alone; if nothing was changed or answered; if
            a second run comes to something else; if doing nothing would pass.
    """
    world = draft.world
    if not isinstance(world, AppWorldWorld):
        raise BuildError(f"the world is a {type(world).__name__}, not an AppWorldWorld")
    _check_place(draft.scenario, world)
    if not draft.instruction.strip():
        raise BuildError("the instruction says nothing")
    if not draft.solution:
        raise BuildError("there are no actions")
    run = _run(draft, world)
    _check_run(run, draft.solution)
    if run != _run(draft, world):
        raise BuildError("a second run comes to something else")
    verifier = AppWorldVerifier(
        changes=run.changes, answer="" if run.answer is None else canonical_json(run.answer)
    )
    if compared(verifier, {}, None, completed=True).success:
        raise BuildError("doing nothing would pass")
    return Task(
        benchmark="appworld",
        split=split_of(draft.scenario),
        subset="evolved",
        scenario=draft.scenario,
        instruction=draft.instruction,
        world=world,
        verifier=verifier,
        solution=draft.solution,
        origin="evolved",
        parents=draft.parents,
    )


def _check_place(scenario: str, world: AppWorldWorld) -> None:
    """Check that the world is one to train in."""
    actual = scenario_of(world.data, world.base)
    if scenario != actual:
        raise BuildError(f"claims to lie in {scenario}, but lies in {actual}")
    try:
        root_of(world.data)
        split = split_of(scenario)
    except (TaskError, DataError, BenchmarkNotInstalled) as error:
        raise BuildError(f"the world is not at hand: {error}") from error
    if split is not Split.TRAIN:
        raise BuildError(f"{world.base} is not a task to train in")


def _check_run(run: Run, actions: Sequence[str]) -> None:
    for number, error in enumerate(run.errors, start=1):
        if error:
            raise BuildError(f"action {number} of {len(actions)} fails: {error}")
    if True in run.completed[:-1]:
        early = run.completed.index(True) + 1
        raise BuildError(f"the task is completed too early, by action {early} of {len(actions)}")
    if not run.completed[-1]:
        raise BuildError("the task is not completed at the end")
    if not run.changes and run.answer is None:
        raise BuildError("nothing was changed, and nothing answered")


def _run(draft: Draft, place: AppWorldWorld) -> Run:
    """Carry out all actions up to the first that fails."""
    errors, completed = [], []
    with closing(World(root_of(place.data))) as world:
        world.begin(place.base, instruction=draft.instruction)
        for action in draft.solution:
            error, ended = _act(world, action)
            errors.append(error)
            completed.append(ended)
            if error:
                break
        end = world.diff()
    return Run(tuple(errors), tuple(completed), end.changes, end.answer)


def _act(world: World, action: str) -> tuple[str, bool]:
    """The error of an action, and whether the task has been completed."""
    ran = world.step(code_of(action))
    return (ran.output.strip() if ran.kind else ""), ran.completed


def replay(task: Task, actions: Sequence[str]) -> Replay:
    """Carry out actions in a fresh world, with the score after each."""
    place, verifier = task.world, task.verifier
    assert isinstance(place, AppWorldWorld)
    assert isinstance(verifier, AppWorldVerifier)
    errors = []
    with closing(World(root_of(place.data))) as world:
        world.begin(place.base, instruction=task.instruction)
        scores = [float(grade(world, verifier).success)]
        for action in actions:
            errors.append(_act(world, action)[0])
            scores.append(float(grade(world, verifier).success))
        end = world.diff()
    return Replay(tuple(errors), tuple(scores), digest([end.changes, end.answer, end.status]))


def drafts(trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
    """Wish for some of what a walk has done, and ask about a list that it has seen."""
    last = FAILED if trace.steps[-1].error_kind else ""  # all that is known of its outcome
    outcomes = [*(step.observation for step in trace.steps[1:]), last]
    walk = Walk(list(zip(trace.actions, outcomes, strict=True)))
    found = []
    if walk.done:
        n = int(rng.integers(1, min(MAX_ACTS, len(walk.done)) + 1))
        chosen = [walk.done[int(i)] for i in rng.choice(len(walk.done), size=n, replace=False)]
        wish = ", and ".join(" ".join(d.act.words.format(**d.row).split()) for d in chosen)
        signed_in = dict.fromkeys(sign_in(d.look.app) for d in chosen)
        looked = dict.fromkeys(look_code(d.look) for d in chosen)
        acts = [act_code(d.look, d.act, d.row) for d in chosen]
        found.append(_draft(wish, [*signed_in, *looked, *acts, FINISH], context, rng))
    asked = [listed for listed in walk.listed.values() if listed.look.counted[0] and listed.whole]
    if asked:
        found += _question(asked[int(rng.integers(len(asked)))], context, rng)
    return found


def _question(listed: Listed, context: Context, rng: Generator) -> Sequence[Draft]:
    """Ask how many rows have a value that some row has."""
    values, look = listed.values(), listed.look
    if not values:
        return ()
    value = values[int(rng.integers(len(values)))]
    steps = [sign_in(look.app), look_code(look), answer_code(values.count(value))]
    return [_draft(f"tell me {look.counted[1].format(value)}", steps, context, rng)]


def _draft(wish: str, actions: Sequence[str], context: Context, rng: Generator) -> Draft:
    said = _ASKED[int(rng.integers(len(_ASKED)))].format(wish)
    return Draft(
        benchmark="appworld",
        scenario=context.task.scenario,
        instruction=said[0].upper() + said[1:],
        world=context.task.world,
        solution=tuple(actions),
        subset="evolved",
        parents=(context.task.id,),
        context_id=context.id,
    )
