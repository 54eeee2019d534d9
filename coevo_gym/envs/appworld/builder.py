"""Functions that build verified tasks from drafts, and drafts from exploration walks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from numpy.random import Generator

from coevo_gym.core.benchmark import Clue, Effect, Evidence, Replay
from coevo_gym.core.errors import BenchmarkNotInstalled, BuildError, DataError, TaskError
from coevo_gym.core.evolution import Context, Draft, digest
from coevo_gym.core.spaces import name_to_words
from coevo_gym.core.task import Split, Task, canonical_json, thaw
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.envs.appworld.engine.engine_session import Diff, Ran, WorldSession
from coevo_gym.envs.appworld.env import code_of, introduction
from coevo_gym.envs.appworld.judge import grade, grade_changes
from coevo_gym.envs.appworld.moves import (
    FAILED,
    FINISH,
    MoveState,
    PrintedList,
    act_code,
    answer_code,
    look_code,
    sign_in_code,
)
from coevo_gym.envs.appworld.tasks import ensure_root_of_world, scenario_of, split_of
from coevo_gym.envs.appworld.world import AppWorldVerifier, AppWorldWorld
from coevo_gym.envs.proposals import make_draft, make_evolved_task

MAX_ACTS = 2
"""Maximum number of actions on list rows in a draft made from an exploration walk."""
MAX_NAME_WORDS = 8
"""Maximum number of words in a text that can serve as a name in the task."""
_APIS = re.compile(r"\bapis\.(\w+)\.(\w+)\(")
_SAYS_NOTHING = ("api_docs.", "supervisor.complete_task")
"""Calls that neither read nor change an app."""
_ASKED = ("{}.", "Please {}.", "Could you {}?", "I would like you to {}.")


def build(draft: Draft) -> Task:
    """Build a task that expects the changes and the answer that a draft's actions produce.

    Raises:
        BuildError: if the world is not a training world; if an action fails; if the last action,
            and only that one, does not complete the task; if nothing was changed or answered; if
            doing nothing would pass.
    """
    world = draft.world
    if not isinstance(world, AppWorldWorld):
        raise BuildError(f"the world is a {type(world).__name__}, not an AppWorldWorld")
    _check_world(draft.scenario, world)
    if not draft.instruction.strip():
        raise BuildError("the instruction is empty")
    if not draft.solution:
        raise BuildError("there are no actions")
    end = _run_actions(draft, world)
    answer = "" if end.answer is None else canonical_json(end.answer)
    verifier = AppWorldVerifier(changes=end.changes, answer=answer)
    if grade_changes(verifier, {}, None, completed=True).success:
        raise BuildError("an agent that does nothing would pass")
    return make_evolved_task(draft, split_of(draft.scenario), verifier)


def _check_world(scenario: str, world: AppWorldWorld) -> None:
    """Check that the world belongs to the claimed scenario and to the training split."""
    actual = scenario_of(world.data, world.base)
    if scenario != actual:
        raise BuildError(f"the draft names scenario {scenario}, but its world belongs to {actual}")
    try:
        ensure_root_of_world(world)
        split = split_of(scenario)
    except (TaskError, DataError, BenchmarkNotInstalled) as error:
        raise BuildError(f"the world is not available: {error}") from error
    if split is not Split.TRAIN:
        raise BuildError(f"{world.base} is not a training task")


def _run_actions(draft: Draft, place: AppWorldWorld) -> Diff:
    """Run a draft's actions, and return the changes and the answer that they produce."""
    n, ended_by = len(draft.solution), 0
    with closing(WorldSession(ensure_root_of_world(place))) as world:
        world.begin(place.base, instruction=draft.instruction)
        for number, action in enumerate(draft.solution, start=1):
            ran = world.step(code_of(action))
            if ran.kind:
                raise BuildError(f"action {number} of {n} fails: {ran.output.strip()}")
            if ran.completed and not ended_by:
                ended_by = number
        end = world.diff()
    if not ended_by:
        raise BuildError("the actions do not complete the task")
    if ended_by < n:
        raise BuildError(f"the task is completed too early, by action {ended_by} of {n}")
    if not end.changes and end.answer is None:
        raise BuildError("the actions neither change anything nor give an answer")
    return end


def replay(task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
    """Run actions in a fresh world; see :meth:`coevo_gym.core.benchmark.Benchmark.replay`."""
    place, verifier = task.world, task.verifier
    assert isinstance(place, AppWorldWorld)
    assert isinstance(verifier, AppWorldVerifier)
    errors, outputs, effects = [], [], []
    with closing(WorldSession(ensure_root_of_world(place))) as world:
        brief = world.begin(place.base, instruction=task.instruction)
        end = world.diff()
        scores, states = [grade(world, verifier, end).success], [digest(end.changes)]
        for action in actions:
            ran, before = world.step(code_of(action)), end
            end = world.diff()
            errors.append(ran.output.strip() if ran.kind else "")
            outputs.append(ran.output)
            scores.append(grade(world, verifier, end).success)
            states.append(digest(end.changes))
            effects.append(_classify_effect(ran, before, end))
            if to_error and errors[-1]:
                break
    fingerprint = digest([end.changes, end.answer, end.status])
    return Replay(
        tuple(errors),
        tuple(map(float, scores)),
        fingerprint,
        tuple(effects),
        tuple(states),
        tuple(outputs),
        opening=introduction(brief),
    )


def _classify_effect(ran: Ran, before: Diff, after: Diff) -> Effect:
    if after.changes != before.changes:
        return Effect.CHANGED
    if any(not call.startswith(_SAYS_NOTHING) for call in ran.calls):
        return Effect.READ
    return Effect.CLOSED if after.status != before.status else Effect.NOTHING


def evidence(task: Task) -> Evidence:
    """Return the facts an instruction must convey: the changes or, if there are none, the question.

    The forbidden strings are the answer to a question, and every call written out in full.
    """
    verifier = task.verifier
    assert isinstance(verifier, AppWorldVerifier)
    called: dict[str, list[str]] = {}
    for app, api in _APIS.findall("\n".join(map(code_of, task.solution))):
        if app != "supervisor" and api != "login":
            called.setdefault(app, [app, name_to_words(app)]).extend(name_to_words(api).split())
    changed: dict[str, list[str]] = {}
    for model, rows in (thaw(verifier.changes) or {}).items():
        app = model.partition(".")[0]
        names = changed.setdefault(app, called.get(app, [app, name_to_words(app)]))
        names += [*name_to_words(model.partition(".")[2]).split(), *_clue_names(rows)]
    clues = [
        Clue(f"what changes in {app}", tuple(names), task.instruction)
        for app, names in changed.items()
    ]
    asked = tuple(name for names in called.values() for name in names)
    if asked and not changed:
        clues.append(Clue("what is looked at", asked, task.instruction))
    answers = [line.strip() for action in task.solution for line in code_of(action).splitlines()]
    answers = [line for line in answers if _APIS.search(line)]
    if verifier.answer and not changed:
        answers += [_format_value(item) for item in _as_list(json.loads(verifier.answer))]
    return Evidence(task.instruction, tuple(clues), tuple(answers))


def _format_value(value: Any) -> str:
    """Format a value as a user would write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _clue_names(value: Any) -> Iterator[str]:
    """Yield the short strings and decimals in changed database rows, except ids and timestamps."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not key.endswith(("id", "_at")):
                yield from _clue_names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _clue_names(item)
    elif isinstance(value, str) and len(value.split()) <= MAX_NAME_WORDS:
        yield value
    elif isinstance(value, float):
        yield _format_value(value)


def drafts(trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
    """Create up to two drafts: one that repeats part of the walk and one that asks about a list."""
    last = FAILED if trace.steps[-1].error_kind else ""  # its full outcome is not recorded
    outcomes = [*(step.observation for step in trace.steps[1:]), last]
    walk = MoveState(list(zip(trace.actions, outcomes, strict=True)))
    proposals = []
    if walk.done:
        n = int(rng.integers(1, min(MAX_ACTS, len(walk.done)) + 1))
        chosen = [walk.done[int(i)] for i in rng.choice(len(walk.done), size=n, replace=False)]
        wish = ", and ".join(" ".join(d.act.words.format(**d.row).split()) for d in chosen)
        signed_in = dict.fromkeys(sign_in_code(d.look.app) for d in chosen)
        looked = dict.fromkeys(look_code(d.look) for d in chosen)
        acts = [act_code(d.look, d.act, d.row) for d in chosen]
        proposals.append(_create_draft(wish, [*signed_in, *looked, *acts, FINISH], context, rng))
    asked = [
        listing
        for listing in walk.listed.values()
        if listing.look.counted[0] and listing.is_complete
    ]
    if asked:
        proposals += _draft_question(asked[int(rng.integers(len(asked)))], context, rng)
    return proposals


def _draft_question(listing: PrintedList, context: Context, rng: Generator) -> Sequence[Draft]:
    """Create a draft that asks how many rows share a value."""
    values, look = listing.values_to_count(), listing.look
    if not values:
        return ()
    value = values[int(rng.integers(len(values)))]
    steps = [sign_in_code(look.app), look_code(look), answer_code(values.count(value))]
    return [_create_draft(f"tell me {look.counted[1].format(value)}", steps, context, rng)]


def _create_draft(wish: str, actions: Sequence[str], context: Context, rng: Generator) -> Draft:
    sentence = _ASKED[int(rng.integers(len(_ASKED)))].format(wish)
    return make_draft(
        context,
        instruction=sentence[0].upper() + sentence[1:],
        world=context.task.world,
        solution=actions,
    )
