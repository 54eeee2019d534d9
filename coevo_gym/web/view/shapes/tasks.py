"""Tasks of a run: rows of a list, and one task with its lineage and its success over time."""

from __future__ import annotations

from typing import Any

from coevo_gym.web.view.shapes.base import Paged, Shape
from coevo_gym.web.view.shapes.drafts import DraftDetail


class TaskPractice(Shape):
    """Training of one arm on a task.

    Attributes:
        arm: name of the arm.
        groups: number of groups.
        episodes: number of episodes.
        successes: number of episodes that solved the task.
    """

    arm: str
    groups: int
    episodes: int
    successes: int


class TaskRow(Shape):
    """A task of a run in a list.

    Filters: ``arm`` (whose pool contains the task), ``origin``, ``round``, ``signal`` (kind that
    led to the task), ``practised`` (``true`` or ``false``), ``success_from``, ``success_to``
    (share, in [0, 1]), ``q`` (words of name, id and instruction). Sorts: ``found`` (default),
    ``success``, ``episodes``, ``children``, ``name``.

    Attributes:
        id: id of the task.
        name: display name.
        instruction: the instruction, cut with ``…`` after 300 characters.
        origin: ``native``, ``evolved`` or ``open``.
        split: always ``train``; tasks of other splits are not listed.
        arms: arms whose pools contain the task.
        round: the round that first found the task; "" for a native task.
        step: the step after which that round was applied; null for a native task.
        signal: kind of the signal or other reason that led to the task, or "".
        parents: ids of the tasks that this task grew from.
        children: number of tasks that grew from this task.
        generation: 0 for a native task; for others, one more than their parents' generation.
        practice: training on the task, by arm.
        episodes: number of training episodes, over all arms.
        successes: number of these episodes that solved the task.
        success: share of these episodes that solved the task; null if it was never practised.
    """

    id: str
    name: str
    instruction: str
    origin: str
    split: str
    arms: tuple[str, ...]
    round: str
    step: int | None
    signal: str
    parents: tuple[str, ...]
    children: int
    generation: int
    practice: tuple[TaskPractice, ...]
    episodes: int
    successes: int
    success: float | None


class TaskPage(Paged):
    """A page of a run's tasks."""

    rows: tuple[TaskRow, ...]


class LineageNode(Shape):
    """A task in a lineage graph.

    Attributes:
        id: id of the task.
        name: display name.
        instruction: the instruction, cut with ``…`` after 300 characters.
        origin: ``native`` (a starting point of D_0), ``evolved`` or ``open``; "" if the run does
            not contain the task.
        generation: distance from the displayed task: 0 for the task itself, 1, 2, … for ancestors,
            -1, -2, … for descendants.
        first: true if the task belongs to the first task set (D_0).
        round: the round that found the task; "" for a native task.
        arms: arms whose pools contain the task.
        signal: kind of signal that led to the task, or "".
        success: share of its training episodes that solved the task; null if it was never
            practised.
        known: true if ``tasks/{id}`` returns the task.
    """

    id: str
    name: str
    instruction: str
    origin: str
    generation: int
    first: bool = False
    round: str = ""
    arms: tuple[str, ...] = ()
    signal: str = ""
    success: float | None = None
    known: bool = True


class LineageEdge(Shape):
    """An edge of the lineage graph: ``child`` grew from ``parent``; both are ids of nodes."""

    parent: str
    child: str


class Lineage(Shape):
    """The lineage of a task: its ancestors back to D_0 and the native tasks, and its descendants.

    Attributes:
        nodes: the task, its ancestors and its descendants, without duplicates.
        edges: edges between the nodes.
        more: number of descendants omitted because there are too many.
    """

    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    more: int = 0


class PracticePoint(Shape):
    """A group in which a task was practised.

    Attributes:
        arm: name of the arm.
        step: learner step.
        group: id of the group.
        episodes: number of rollouts that arrived.
        successes: number of rollouts that solved the task.
        stored: true if the group's episodes are stored.
    """

    arm: str
    step: int
    group: str
    episodes: int
    successes: int
    stored: bool


class BeforeAndAfter(Shape):
    """Two episodes of one arm on a task, with different versions of the interface.

    Attributes:
        arm: name of the arm.
        before: id of the early episode; a failed one if possible.
        before_step: learner step of the early episode.
        after: id of the late episode; a successful one if possible.
        after_step: learner step of the late episode.
    """

    arm: str
    before: str
    before_step: int
    after: str
    after_step: int


class TaskDetail(Shape):
    """A task of a run: its origin, its verification, and the policy's success on it.

    Attributes:
        task: the task's row in the list.
        instruction: the full instruction.
        scenario: the scenario; all tasks of a scenario belong to the same split.
        subset: the benchmark's name for the subset, or "".
        tags: tags of the task, each ``kind:value``.
        solution: reference actions; null if withheld.
        verifier: the verifier as JSON; null if withheld.
        world: the engine's initial state as JSON; null if withheld.
        withheld: why solution, verifier and world are withheld, or "".
        lineage: ancestors and descendants of the task.
        story: the draft behind the task, with the walk and each gate's verdict; null if no round
            made the task.
        practice: every group in which the task was practised, by arm, then by step.
        arms: training on the task, by arm.
        interfaces: a pair of episodes for each arm whose interface changed between two stored
            episodes.
        decision: the user's decision about the task (``what``, ``reason``, ``at``), or null.
    """

    task: TaskRow
    instruction: str
    scenario: str
    subset: str
    tags: tuple[str, ...]
    solution: tuple[str, ...] | None
    verifier: dict[str, Any] | None
    world: dict[str, Any] | None
    withheld: str = ""
    lineage: Lineage
    story: DraftDetail | None
    practice: tuple[PracticePoint, ...]
    arms: tuple[TaskPractice, ...]
    interfaces: tuple[BeforeAndAfter, ...] = ()
    decision: dict[str, str] | None = None
