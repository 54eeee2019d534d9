"""Parts used in several responses: tasks, signals, contexts, walks and gate results."""

from __future__ import annotations

from typing import Any

from coevo_gym.web.view.shapes.base import Shape


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
