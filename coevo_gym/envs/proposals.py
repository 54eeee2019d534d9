"""What all benchmarks have in common where a model explores: open tasks, and drafts from proposals.

A proposal is a model's own words. Nothing in it is trusted: what cannot be made into a draft is a
:class:`~coevo_gym.core.errors.BuildError` that says why, for whoever reads the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from coevo_gym.core.errors import BuildError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import OPEN, NothingAsked, Split, Task, World, strictest
from coevo_gym.envs.base import ACTION_CAP

MAX_ACTIONS = 100
"""Most actions of a proposal; each is played several times before a task is proven."""
MAX_TURNS = 20
MAX_REQUEST = 4_000
"""Most characters of what a user says in a turn."""


def opened(task: Task, side: Split, instruction: str, *, world: World | None = None) -> Task:
    """A task's world with nothing asked for; an open task is open already.

    Args:
        task: the task.
        side: where it lies by what it is (``Benchmark.side_of``), so that a copy of a held-out task
            is held out when it is opened, too.
        instruction: a sentence that is the same for all tasks of a benchmark.
        world: its world without what is asked for; None if the world holds nothing of that.
    """
    if task.origin == OPEN:
        return task
    changes = {
        "name": "",
        "split": strictest(task.split, side),
        "instruction": instruction,
        "world": task.world if world is None else world,
        "verifier": NothingAsked(),
        "solution": (),
        "origin": OPEN,
        "parents": (task.id,),
        "provenance": {},
    }
    return task.model_copy(update=changes)


def request_of(proposal: Proposal) -> str:
    """What a user asks for in a single turn.

    Raises:
        BuildError: if there are more turns, or it says nothing, or is too long.
    """
    turns = requests_of(proposal)
    if len(turns) > 1:
        raise BuildError(f"the user speaks {len(turns)} times, and here all is said at once")
    return turns[0]


def requests_of(proposal: Proposal) -> tuple[str, ...]:
    """What a user says in each turn.

    Raises:
        BuildError: if there are too many turns, or one says nothing, or is too long.
    """
    turns = tuple(said.strip() for said in proposal.turns)
    if len(turns) > MAX_TURNS:
        raise BuildError(f"the user speaks {len(turns)} times, more than {MAX_TURNS}")
    for number, said in enumerate(turns, start=1):
        if not said:
            raise BuildError(f"the user says nothing in turn {number}")
        if len(said) > MAX_REQUEST:
            raise BuildError(
                f"what the user says in turn {number} has {len(said)} characters, more than "
                f"{MAX_REQUEST}"
            )
    return turns


def actions_of(proposal: Proposal) -> tuple[str, ...]:
    """Its actions.

    Raises:
        BuildError: if there are none, too many, or one is longer than an env takes.
    """
    actions = proposal.actions
    if not actions:
        raise BuildError("there are no actions")
    if len(actions) > MAX_ACTIONS:
        raise BuildError(f"there are {len(actions)} actions, more than {MAX_ACTIONS}")
    for number, action in enumerate(actions, start=1):
        if len(action) > ACTION_CAP:
            raise BuildError(
                f"action {number} has {len(action)} characters, more than {ACTION_CAP}"
            )
    return actions


def draft_of(
    context: Context,
    *,
    instruction: str,
    solution: Sequence[str],
    world: World,
    scenario: str | None = None,
) -> Draft:
    """The draft of what was explored from a context.

    What grew from an open task counts as grown from the task that was opened.

    Args:
        context: where it was explored from.
        instruction: what the agent would be asked to do.
        solution: actions that claim to solve it.
        world: starts the engine.
        scenario: where it claims to lie; None for the scenario of the context's task.

    Raises:
        BuildError: if a text is not valid Unicode, as one read from escapes may be.
    """
    source = context.task
    try:
        return Draft(
            benchmark=source.benchmark,
            scenario=source.scenario if scenario is None else scenario,
            instruction=instruction,
            world=world,
            solution=tuple(solution),
            subset="evolved",
            parents=source.parents if source.origin == OPEN else (source.id,),
            context_id=context.id,
        )
    except ValidationError as error:
        raise BuildError(f"it cannot be written down: {error.errors()[0]['msg']}") from error


def check_context(benchmark: str, context: Context) -> None:
    """Refuse to draft from a task that is another benchmark's, or not to train on.

    Raises:
        SplitLeakError: if the context's task is no training task.
        TaskError: if it is another benchmark's.
    """
    task = context.task
    if task.benchmark != benchmark:
        raise TaskError(f"{task.name} is a task of {task.benchmark}, not of {benchmark}.")
    if task.split is not Split.TRAIN:
        raise SplitLeakError(
            f"Refusing to draft from {task.name}: it is a {task.split} task, and only training "
            "tasks may be explored and drafted from."
        )
