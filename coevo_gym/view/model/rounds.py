"""Rounds of evolution: rows, and single rounds with their contexts and drafts."""

from __future__ import annotations

import json

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Context, Explored, Signal
from coevo_gym.view.model.briefs import brief_of, checked_arm
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.shapes.base import ContextView, SignalView
from coevo_gym.view.shapes.drafts import DraftRow
from coevo_gym.view.shapes.steps import RoundDetail, RoundList, RoundRow
from coevo_gym.view.shelf import ShownRun, told_as_damaged


def round_list(run: ShownRun, arm: str) -> RoundList:
    """Return the rounds of an arm.

    Raises:
        NotFound: if the run has no such arm.
    """
    return RoundList(rows=rounds_of(run, checked_arm(run, arm)))


def rounds_of(run: ShownRun, arm: str) -> tuple[RoundRow, ...]:
    """Return the rounds of an arm, in order."""
    query = "SELECT id, step, env_steps, pool_size, body FROM rounds WHERE arm = ? ORDER BY number"
    with told_as_damaged():
        run.index.refresh()
        rows = run.index.rows(query, arm)
    return tuple(
        RoundRow(id=id, arm=arm, step=step, env_steps=env_steps, pool_size=pool, **json.loads(body))
        for id, step, env_steps, pool, body in rows
    )


def round_detail(run: ShownRun, arm: str, id: str, drafts: tuple[DraftRow, ...]) -> RoundDetail:
    """Return a round with its contexts and every draft.

    Args:
        run: the run.
        arm: name of the arm.
        id: id of the round.
        drafts: the round's drafts, in order.

    Raises:
        NotFound: if the arm has no such round.
    """
    rows = {row.id: row for row in rounds_of(run, checked_arm(run, arm))}
    if id not in rows:
        raise NotFound(f"{arm} has no {id[:60]!r} in {run.id}.")
    reader = run.reader
    try:
        applied = reader.round(arm, id)
    except StoreError as error:
        raise NotFound(str(error)) from error
    explored = {one.context.id: one for one in applied.result.explored}
    contexts = list(applied.round.contexts) or [one.context for one in explored.values()]
    return RoundDetail(
        round=rows[id],
        contexts=tuple(
            context_view(
                context, explored.get(context.id), reader.signal_behind(arm, context, applied.step)
            )
            for context in contexts
        ),
        drafts=drafts,
    )


def context_view(context: Context, explored: Explored | None, signal: Signal | None) -> ContextView:
    """Return an explorer's starting point, and the information that it received.

    Args:
        context: the explorer's context.
        explored: the exploration of the context; None if not stored.
        signal: the signal that the context comes from; None if there is none.
    """
    return ContextView(
        id=context.id,
        kind=context.kind,
        task=brief_of(context.task),
        summary=context.summary,
        success=context.success,
        actions=context.actions,
        evidence=tuple(one.model_dump(mode="json") for one in context.evidence),
        last_observation=context.last_observation,
        contrast=context.contrast,
        target=context.target,
        signal=signal
        and SignalView(kind=signal.kind, evidence=signal.model_dump(mode="json")["evidence"]),
        brief=explored.brief.model_dump(mode="json") if explored and explored.brief else None,
        problems=explored.problems if explored else (),
    )
