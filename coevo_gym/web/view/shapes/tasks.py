"""Tasks of a run: rows of a list, and one with its lineage and its success over time."""

from __future__ import annotations

from typing import Any

from coevo_gym.web.view.shapes.base import Paged, Shape
from coevo_gym.web.view.shapes.drafts import DraftDetail


class Practice(Shape):
    """How an arm practised a task.

    Attributes:
        arm: whose.
        groups: how often, in groups.
        episodes: in episodes.
        successes: those that solved it.
    """

    arm: str
    groups: int
    episodes: int
    successes: int


class TaskRow(Shape):
    """A task of a run in a list.

    Filters: ``arm`` (in whose pool it is), ``origin``, ``round``, ``signal`` (kind that led to
    it), ``practised`` (``true`` or ``false``), ``success_from``, ``success_to`` (share, in
    [0, 1]), ``q`` (words of name, id and instruction). Sorts: ``found`` (usual), ``success``,
    ``episodes``, ``name``.

    Attributes:
        id: its id.
        name: for people.
        instruction: what it asks for; cut with ``…`` after 300 characters.
        origin: ``native``, ``evolved`` or ``open``.
        split: always ``train``, or the task would not be here.
        arms: whose pools it is in.
        round: the round that found it first; "" of a native one.
        step: the step after which that round was applied; null of a native one.
        signal: kind of the signal or other reason that led to it; "".
        parents: ids of the tasks that it grew from.
        children: how many grew from it.
        generation: 0 for a native one, 1 more than its parents for others.
        practice: how each arm practised it.
        episodes: of all arms.
        successes: of all arms.
        success: share of its episodes that solved it; null if it was never practised.
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
    practice: tuple[Practice, ...]
    episodes: int
    successes: int
    success: float | None


class TaskPage(Paged):
    """Tasks of a run."""

    rows: tuple[TaskRow, ...]


class LineageNode(Shape):
    """A task in the graph of what grew from what.

    Attributes:
        id: its id.
        name: for people.
        instruction: cut with ``…`` after 300 characters.
        origin: ``native`` (a start of D_0), ``evolved``, ``open``; "" if the run does not hold it.
        generation: 0 for the task that is shown, 1 for its parents, …; -1 for its children, ….
        first: whether it is of the first task set (D_0).
        round: the round that found it; "" of a native one.
        arms: whose pools it is in.
        signal: kind that led to it; "".
        success: share of its episodes that solved it; null if it was never practised.
        known: whether ``tasks/{id}`` shows it.
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
    """``child`` grew from ``parent``; both are ids of nodes."""

    parent: str
    child: str


class Lineage(Shape):
    """What a task grew from, back to D_0 and the native tasks, and what grew from it.

    Attributes:
        nodes: the task itself, its ancestors and its descendants; each once.
        edges: between them.
        more: descendants that are left out because there are too many.
    """

    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    more: int = 0


class PracticePoint(Shape):
    """A group in which a task was practised.

    Attributes:
        arm: whose.
        step: step of the learner.
        group: id of the group.
        episodes: rollouts that arrived.
        successes: those that solved it.
        stored: whether the episodes are stored.
    """

    arm: str
    step: int
    group: str
    episodes: int
    successes: int
    stored: bool


class BeforeAndAfter(Shape):
    """Two episodes of one arm on a task, shown through different versions of the interface.

    Attributes:
        arm: the arm.
        before: id of the early episode; a failed one if there is one.
        before_step: its step of the learner.
        after: id of the late episode; one that solved the task if there is one.
        after_step: its step of the learner.
    """

    arm: str
    before: str
    before_step: int
    after: str
    after_step: int


class TaskDetail(Shape):
    """A task of a run: where it comes from, how it was proven, and how it is mastered.

    Attributes:
        task: as in the list.
        instruction: what it asks for, whole.
        scenario: the unit that stays on one side of a split.
        subset: the benchmark's own name for a part, or "".
        tags: what it is about, ``kind:value`` each.
        solution: reference actions; null where they are withheld.
        verifier: what judges it, as JSON; null where it is withheld.
        world: what its engine starts from, as JSON; null where it is withheld.
        withheld: why solution, verifier and world are withheld; "" if they are not.
        lineage: what it grew from, and what grew from it.
        story: how it was found: the walk, each gate's verdict; null of one that no round has made.
        practice: every group in which it was practised, by arm, then by step.
        arms: how each arm practised it.
        interfaces: for each arm whose interface changed between two stored episodes, such a pair.
        decision: what a person decided about it: ``what``, ``reason``, ``at``; null if nobody did.
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
    arms: tuple[Practice, ...]
    interfaces: tuple[BeforeAndAfter, ...] = ()
    decision: dict[str, str] | None = None
