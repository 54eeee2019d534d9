"""Evaluations that stay, the evaluations within runs, and comparisons of two policies."""

from __future__ import annotations

from typing import Any, Literal

from coevo_gym.web.view.shapes.base import Paged, Shape


class EvalRow(Shape):
    """An evaluation in the list.

    Attributes:
        id: what paths call it.
        name: its own name.
        path: its folder, for people.
        source: the run or benchmark that was evaluated.
        policy: which policy.
        model: what it is, in a word; "" for a baseline.
        benchmark: what was played.
        split: which tasks.
        n_tasks: how many of them.
        samples: episodes of each.
        done: episodes that came to an end.
        total: episodes in all.
        lost: episodes that were lost to a fault, of every try.
        finished: whether it has its summary.
        running: whether it is being written to.
        success: mean over tasks of the share of episodes that succeeded; null without any.
        low: lower end of its 95 % interval.
        high: upper end.
        updated_at: when something was last written, in UTC (ISO 8601).
        problem: why it cannot be read, and what to do; "".
    """

    id: str
    name: str
    path: str
    source: str = ""
    policy: str = ""
    model: str = ""
    benchmark: str = ""
    split: str = ""
    n_tasks: int = 0
    samples: int = 1
    done: int = 0
    total: int = 0
    lost: int = 0
    finished: bool = False
    running: bool = False
    success: float | None = None
    low: float | None = None
    high: float | None = None
    updated_at: str | None = None
    problem: str = ""


class EvalList(Shape):
    """All evaluations that the viewer was given, the latest first."""

    evals: tuple[EvalRow, ...]


class TypeRow(Shape):
    """How much of the tasks of one type was solved.

    Attributes:
        kind: what is told apart, such as ``category`` or ``subset``.
        value: which of it.
        tasks: tasks with at least one episode that came to an end.
        success: mean over them of the share of episodes that succeeded.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    kind: str
    value: str
    tasks: int
    success: float | None
    low: float | None
    high: float | None


class EvalDetail(Shape):
    """An evaluation.

    Attributes:
        eval: as in the list.
        notice: what a reader has to know before using its episodes; "" for training tasks.
        score: mean score in [0, 1].
        scenario_success: share of scenarios all of whose episodes succeeded; null if not known.
        steps: mean env steps of an episode.
        end_reasons: how many episodes ended for which reason.
        pass_at: pass@k by k, of several samples; keys are the numbers as text.
        types: success by task type, kinds in order.
        tokens: ``prompt``, ``completion`` tokens of the model, and ``usd``.
        config: all that its numbers depend on, without secrets.
    """

    eval: EvalRow
    notice: str
    score: float | None
    scenario_success: float | None
    steps: float | None
    end_reasons: dict[str, int]
    pass_at: dict[str, float]
    types: tuple[TypeRow, ...]
    tokens: dict[str, float]
    config: dict[str, Any]


class EpisodeRow(Shape):
    """An episode of an evaluation in a list.

    Filters: ``success`` (``true`` or ``false``), ``end`` (reason), ``type`` (``kind:value``),
    ``sample``, ``task`` (id), ``q`` (words of name, id and instruction). Sorts: ``name`` (usual),
    ``score``, ``steps``.

    Attributes:
        id: what paths call it: ``TASK.SAMPLE``.
        task: id of its task.
        name: of its task.
        instruction: cut with ``…`` after 300 characters.
        sample: which of the task's episodes it is, from 0.
        tags: what the task is about.
        success: the binary outcome.
        score: the benchmark's own score.
        end_reason: why it ended.
        steps: env steps taken.
        stored: whether ``evals/{name}/episodes/{id}`` shows it.
    """

    id: str
    task: str
    name: str
    instruction: str
    sample: int
    tags: tuple[str, ...]
    success: bool
    score: float
    end_reason: str
    steps: int
    stored: bool


class EpisodePage(Paged):
    """Episodes of an evaluation."""

    rows: tuple[EpisodeRow, ...]


class TaskOutcome(Shape):
    """How a held-out task ended in an evaluation of a run.

    Attributes:
        id: of the task.
        name: of the task.
        instruction: cut with ``…`` after 300 characters.
        tags: what it is about.
        success: whether at least half of its episodes succeeded.
        share: share of its episodes that succeeded.
        episodes: how many there are.
        score: mean of the benchmark's own score.
        end_reason: why they ended; of several reasons, the most frequent one.
        steps: mean env steps taken.
        before: ``success`` at the arm's evaluation before this one; null if there was none.
    """

    id: str
    name: str
    instruction: str
    tags: tuple[str, ...]
    success: bool
    share: float
    episodes: int
    score: float
    end_reason: str
    steps: float
    before: bool | None = None


class EvaluationDetail(Shape):
    """An evaluation of an arm on its run's held-out tasks, task by task.

    Attributes:
        run: id of the run.
        arm: whose; ``random`` and ``warm-up`` are the baselines.
        step: the arm's step.
        split: which tasks.
        steps: all steps at which the arm was evaluated and tasks' ends stored.
        success: success rate in [0, 1].
        low: lower end of its 95 % interval.
        high: upper end.
        types: success by task type.
        tasks: how each ended, in order.
    """

    run: str
    arm: str
    step: int
    split: str
    steps: tuple[int, ...]
    success: float | None
    low: float | None
    high: float | None
    types: tuple[TypeRow, ...]
    tasks: tuple[TaskOutcome, ...]


class SideInfo(Shape):
    """One side of a comparison.

    Attributes:
        place: what ``a`` or ``b`` of the query calls it: ``runs/{run}/{arm}`` or ``evals/{name}``.
        label: for people.
        policy: name of the policy.
        success: mean over tasks of the share of episodes that succeeded.
        samples: fewest and most episodes of a task.
        only: tasks that the other side lacks.
    """

    place: str
    label: str
    policy: str
    success: float
    samples: tuple[int, int]
    only: int


class ChangedTaskRow(Shape):
    """A task that one side solves and the other does not.

    Attributes:
        id: of the task.
        name: of the task.
        instruction: cut with ``…`` after 300 characters.
        tags: what it is about.
        success_a: share of A's episodes that succeeded.
        success_b: share of B's.
        link_a: path of A's episode without ``/api/``, where it can be seen; else null.
        link_b: likewise of B's.
    """

    id: str
    name: str
    instruction: str
    tags: tuple[str, ...]
    success_a: float
    success_b: float
    link_a: str | None = None
    link_b: str | None = None


class ComparedType(Shape):
    """Both sides on the tasks of one type.

    Attributes:
        kind: what is told apart.
        value: which of it.
        tasks: tasks that both have.
        success_a: A's success on them.
        success_b: B's.
        won: tasks that B alone solves.
        lost: tasks that A alone solves.
    """

    kind: str
    value: str
    tasks: int
    success_a: float
    success_b: float
    won: int
    lost: int


class Compared(Shape):
    """B against A, task by task, as ``coevo compare`` tells it.

    Query: ``a`` and ``b``, each ``runs/{run}/{arm}`` (or ``runs/{run}`` for its last arm) or
    ``evals/{name}``; without ``b``, two arms of the run ``a``: the first against the last.

    Attributes:
        a: one side.
        b: the other.
        benchmark: what both played.
        split: which tasks.
        tasks: tasks that both have; all numbers are of these.
        difference: of the success, B - A.
        low: lower end of its 95 % interval.
        high: upper end.
        p: of the test.
        test: which one it is.
        verdict: the finding in a sentence or two.
        better: tasks on which B succeeds more often.
        worse: tasks on which A does.
        both: tasks that both solve. A task counts as solved if half of its episodes succeed.
        neither: tasks that none solves.
        won: tasks that B alone solves.
        lost: tasks that A alone solves.
        uneven: settings that differ, each as ``what: one in A, another in B``.
        types: both sides by task type.
        places: all that can be compared with A, see ``SideInfo.place``.
    """

    a: SideInfo
    b: SideInfo
    benchmark: str
    split: str
    tasks: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    test: Literal["McNemar's exact test", "sign test over tasks"]
    verdict: str
    better: int
    worse: int
    both: int
    neither: int
    won: tuple[ChangedTaskRow, ...]
    lost: tuple[ChangedTaskRow, ...]
    uneven: tuple[str, ...]
    types: tuple[ComparedType, ...]
    places: tuple[str, ...] = ()
