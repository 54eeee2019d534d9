"""Exploring a room without a wish, and drafts from what a model proposes."""

from __future__ import annotations

from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import Task
from coevo_gym.envs.proposals import actions_of, draft_of, opened, request_of

from .tasks import side_of

NOTHING_ASKED = "Look into the boxes, and try out what can be done. Nothing is wanted."


def open_task(task: Task) -> Task:
    """The same room with nothing asked for: what a model explores."""
    return opened(task, side_of(task), NOTHING_ASKED)


def draft(proposal: Proposal, context: Context) -> Draft:
    """What a model proposes as a draft; whether it holds, ``build`` finds out.

    Raises:
        BuildError: with the reason, if it stands for no draft.
    """
    request, actions = request_of(proposal), actions_of(proposal)
    world = context.task.world
    return draft_of(context, instruction=request, world=world, solution=actions)
