"""Functions that create goal-free tasks for exploration, and turn model proposals into drafts."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.builder import calls_of, draft_conversation
from coevo_gym.envs.bfcl.tasks import side_of
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.envs.proposals import actions_of, make_open_task, requests_of

NOTHING_ASKED = "Please try out the functions that you have, and see what they do."


def open_task(task: Task) -> Task:
    """Return a copy of a task for exploration, with all functions but no user requests."""
    world = task.world
    assert isinstance(world, BFCLWorld)
    free = BFCLWorld(
        config=world.config,
        classes=world.classes,
        turns=(NOTHING_ASKED,),
        long_context=world.long_context,
        setup=world.setup,
    )
    return make_open_task(task, side_of(task), NOTHING_ASKED, world=free)


def draft(proposal: Proposal, context: Context) -> Draft:
    """Create a draft conversation from a proposal's user messages and the calls that answer them.

    Raises:
        BuildError: if a turn is empty, a call cannot be parsed or does not fit this world, or the
            calls cannot be assigned to turns.
    """
    world = context.task.world
    assert isinstance(world, BFCLWorld)
    requests = requests_of(proposal)
    try:
        turns = _split_into_turns(actions_of(proposal), len(requests), world)
        return draft_conversation(world, requests, turns, context)
    except RecursionError as error:
        raise BuildError("an argument is nested too deeply") from error


def _split_into_turns(
    messages: Sequence[str], n_turns: int, world: BFCLWorld
) -> Sequence[Sequence[Call]]:
    """Return the proposal's calls, grouped by turn.

    A message without calls ends a turn. If there is one user turn, all calls belong to it. If no
    message ends a turn, each message is a separate turn.
    """
    groups = [
        calls_of(message, f"action {number}", world) for number, message in enumerate(messages, 1)
    ]
    nonempty = [calls for calls in groups if calls]
    if not nonempty:
        raise BuildError("there are no calls")
    if n_turns == 1:
        return [[call for calls in nonempty for call in calls]]
    turns: list[list[Call]] = [[]]
    for calls in groups:
        if calls:
            turns[-1] += calls
        elif turns[-1]:
            turns.append([])
    turns = [turn for turn in turns if turn]
    if len(turns) == 1:
        turns = nonempty
    if len(turns) != n_turns:
        raise BuildError(
            f"the user sends {n_turns} messages, but the actions form {len(turns)} turns: end each "
            "turn with a message that contains no calls"
        )
    return turns
