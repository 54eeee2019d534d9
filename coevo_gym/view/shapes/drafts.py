"""Drafts: tasks that explorers proposed, and the result of each gate."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coevo_gym.view.shapes.base import ContextView, GateView, Paged, Shape, TaskBrief, WalkView


class DraftRow(Shape):
    """A draft in a list.

    Filters: ``arm``, ``round``, ``gate`` (that rejected the draft), ``accepted`` (``true`` or
    ``false``), ``signal`` (kind of its context), ``step_from``, ``step_to``, ``q`` (words of the
    instruction, the reason or the id). Sorts: ``found`` (default), ``gate``,
    ``task`` (instruction), ``signal``.

    Attributes:
        id: id of the draft, used in paths.
        arm: the arm whose round judged the draft; the first arm if several arms share the round.
        arms: all arms that share the round.
        round: id of the round.
        step: the arm's step after which the round was applied.
        first: true for a draft for the first task set (D_0).
        position: position among the round's verdicts.
        accepted: true if the draft passed every gate.
        gate: the gate that rejected the draft, or ``hold`` if the draft awaits review; "" if
            accepted.
        reason: the reason for the rejection in words, or "".
        signal: kind of the context that the draft came from, or "".
        context: id of that context, or "".
        task: the task built from the draft if the run contains that task, else null.
        instruction: the instruction from the last stage that the draft reached, cut with ``…``
            after 300 characters.
    """

    id: str
    arm: str
    arms: tuple[str, ...]
    round: str
    step: int
    first: bool
    position: int
    accepted: bool
    gate: str
    reason: str
    signal: str
    context: str
    task: TaskBrief | None
    instruction: str


class DraftPage(Paged):
    """A page of drafts.

    Attributes:
        gates: number of rejected drafts by gate, largest first, with held drafts under ``hold``.
            All filters apply except ``gate`` and ``accepted``.
        accepted: number of accepted drafts under the same filters.
        examples: for each of these gates, the most common reasons with their counts.
    """

    rows: tuple[DraftRow, ...]
    gates: dict[str, int]
    accepted: int
    examples: dict[str, dict[str, int]] = Field(default_factory=dict)


class DraftDetail(Shape):
    """A draft in full: why the explorer was sent out, its walks, and the verdict of each gate.

    Attributes:
        draft: the draft's row in the list.
        gates: results of the gates in order; the last one decided.
        asked: the full instruction.
        actions: the actions claimed to solve the task.
        body: the draft as JSON.
        proposal: the model's proposal as JSON; null if no model proposed the draft.
        context: the context of the exploration; null if the run did not store it.
        walks: walks from the context; empty if no model explored.
        elsewhere: other drafts with the same id or the same resulting task, each with ``arm``,
            ``round``, ``position``, ``accepted`` and ``gate``.
        decision: the user's decision about the task (``what``, ``reason``, ``at``), or null.
        joined: the arms whose pools contain the task, each with ``arm`` and ``round``.
    """

    draft: DraftRow
    gates: tuple[GateView, ...]
    asked: str
    actions: tuple[str, ...]
    body: dict[str, Any]
    proposal: dict[str, Any] | None
    context: ContextView | None
    walks: tuple[WalkView, ...]
    elsewhere: tuple[dict[str, Any], ...] = ()
    decision: dict[str, str] | None = None
    joined: tuple[dict[str, str], ...] = ()
