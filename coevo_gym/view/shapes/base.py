"""Parts of all responses: base classes, errors, and tasks, signals, contexts and walks in brief."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """A frozen base model for responses. Numbers that are not finite become ``null``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Paged(Shape):
    """One page of a list; subclasses add ``rows``.

    Attributes:
        total: number of rows that match the filters, on all pages.
        page: number of this page, from 1.
        pages: number of pages; 1 for an empty list.
        per_page: maximum number of rows on a page.
    """

    total: int
    page: int
    pages: int
    per_page: int


class ApiProblem(Shape):
    """An error response.

    Attributes:
        error: ``BadRequest``, ``NotFound``, ``Damaged``, ``Refused`` or ``Failed``.
        message: the error in words: what happened, with which value, and what to do.
        places: paths of existing pages to offer instead, such as ``runs/quickstart``.
    """

    error: Literal["BadRequest", "NotFound", "Damaged", "Refused", "Failed"]
    message: str
    places: tuple[str, ...] = ()


class KindInfo(Shape):
    """A kind of signal, or a reason to explore.

    Attributes:
        name: the name used in rows.
        label: the name shown to users.
        colour: colour ``#rrggbb`` in the light theme.
        dark: colour ``#rrggbb`` in the dark theme.
        fires: true if rollouts fire this kind; false if it is only a reason to explore.
    """

    name: str
    label: str
    colour: str
    dark: str
    fires: bool


class About(Shape):
    """The contents and the version of this viewer.

    Attributes:
        version: version of coevo_gym.
        exported: true for an export, whose files never change; false for a server.
        made_at: creation time of an export in UTC (ISO 8601); null for a server.
        left_out: sentences that list what an export leaves out; empty for a server.
        kinds: kinds of signals and contexts in display order, with labels and colours. Rows may
            contain other kinds, which are shown by name in grey.
        home: start page of a viewer of a single run or evaluation, such as ``runs/quickstart``; ""
            to start at the list.
    """

    version: str
    exported: bool = False
    made_at: str | None = None
    left_out: tuple[str, ...] = ()
    kinds: tuple[KindInfo, ...] = ()
    home: str = ""


class TaskBrief(Shape):
    """A short description of a task.

    Attributes:
        id: id of the task, used in paths; "" if the task is no longer known.
        name: display name.
        instruction: the task's instruction, cut with ``…`` after 300 characters.
        origin: ``native``, ``evolved`` or ``open``; "" if unknown.
    """

    id: str
    name: str
    instruction: str
    origin: str = ""


class SignalView(Shape):
    """A signal that an episode fired.

    Attributes:
        kind: kind of the signal.
        evidence: the numbers that the signal's rule evaluated.
    """

    kind: str
    evidence: dict[str, Any]


class ContextView(Shape):
    """The starting point of an exploration, and the information that the explorer received.

    Attributes:
        id: id of the context.
        kind: kind of the signal behind the context, or another reason to explore.
        task: the training task that the exploration starts from.
        summary: the weakness in one sentence, or "".
        success: true if the rollout behind the context succeeded.
        actions: the agent's actions in that rollout.
        evidence: steps of that rollout: ``action``, ``observation`` and ``error_kind``.
        last_observation: the observation after the last action.
        contrast: steps of a rollout in the same group with the opposite outcome.
        target: tags of the wanted task; empty if any task will do.
        signal: the signal that fired; null if no signal fired or the run did not store it.
        brief: a study's report on the rollout, or null.
        problems: deviations from the plan, in words.
    """

    id: str
    kind: str
    task: TaskBrief
    summary: str = ""
    success: bool = False
    actions: tuple[str, ...] = ()
    evidence: tuple[dict[str, str], ...] = ()
    last_observation: str = ""
    contrast: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    signal: SignalView | None = None
    brief: dict[str, Any] | None = None
    problems: tuple[str, ...] = ()


class WalkView(Shape):
    """One exploration walk.

    Attributes:
        number: position among the walks from this context, from 0.
        exchanges: steps of the walk: ``action``, ``observation`` and ``error_kind``.
    """

    number: int
    exchanges: tuple[dict[str, str], ...]


class GateView(Shape):
    """The result of one gate for a draft.

    Attributes:
        gate: name of the gate.
        passed: true if the draft passed; null if the gate did not run.
        said: the gate's finding or reason for the rejection, or "".
    """

    gate: str
    passed: bool | None
    said: str = ""
