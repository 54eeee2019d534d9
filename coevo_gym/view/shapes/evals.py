"""Stored evaluations, evaluations within runs, and comparisons of two policies."""

from __future__ import annotations

from typing import Any, Literal

from coevo_gym.runs.evals.comparison import ComparedType
from coevo_gym.view.shapes.base import Paged, Shape


class EvalRow(Shape):
    """An evaluation in the list.

    Attributes:
        id: id of the evaluation, used in paths.
        name: name of the evaluation.
        path: path of its folder, for display.
        source: the run or benchmark that was evaluated.
        policy: name of the policy.
        model: short name of the model; "" for a baseline.
        benchmark: name of the benchmark.
        split: split of the tasks.
        n_tasks: number of tasks.
        samples: episodes per task.
        done: number of finished episodes.
        total: number of planned episodes.
        lost: number of episodes lost to infrastructure faults, over all attempts.
        finished: true if the summary has been written.
        running: true while a process writes to the evaluation.
        success: success rate averaged over tasks; null without finished episodes.
        low: lower bound of its 95 % confidence interval.
        high: upper bound of that interval.
        updated_at: time of the last write in UTC (ISO 8601).
        problem: why the evaluation cannot be read and what to do, or "".
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
    """All evaluations that the viewer shows, latest first."""

    evals: tuple[EvalRow, ...]


class TypeRow(Shape):
    """Success on the tasks of one type.

    Attributes:
        kind: the kind of tag, such as ``category`` or ``subset``.
        value: the value of the tag.
        tasks: number of tasks with at least one finished episode.
        success: success rate averaged over these tasks.
        low: lower bound of its 95 % confidence interval.
        high: upper bound of that interval.
    """

    kind: str
    value: str
    tasks: int
    success: float | None
    low: float | None
    high: float | None


class EvalDetail(Shape):
    """An evaluation in full.

    Attributes:
        eval: the evaluation's row in the list.
        notice: a warning to read before using the episodes; "" for training tasks.
        score: mean score in [0, 1].
        scenario_success: share of scenarios in which all episodes succeeded; null if unknown.
        steps: mean number of env steps per episode.
        end_reasons: number of episodes by end reason.
        pass_at: pass@k by k when there are several samples per task; the keys are numbers as text.
        types: success by task type, kinds in order.
        tokens: the model's ``prompt`` and ``completion`` tokens, and their cost ``usd``.
        config: all settings that the numbers depend on, without secrets.
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
    ``sample``, ``task`` (id), ``q`` (words of name, id and instruction). Sorts: ``name`` (default),
    ``score``, ``steps``, ``success``.

    Attributes:
        id: id of the episode in paths: ``TASK.SAMPLE``.
        task: id of the task.
        name: name of the task.
        instruction: the task's instruction, cut with ``…`` after 300 characters.
        sample: index among the task's episodes, from 0.
        tags: the task's tags.
        success: the binary outcome.
        score: the benchmark's own score.
        end_reason: why the episode ended.
        steps: env steps taken.
        stored: true if ``evals/{name}/episodes/{id}`` returns the episode.
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
    """A page of an evaluation's episodes."""

    rows: tuple[EpisodeRow, ...]


class TaskOutcome(Shape):
    """The result of a held-out task in an evaluation of a run.

    Attributes:
        id: id of the task.
        name: name of the task.
        instruction: the task's instruction, cut with ``…`` after 300 characters.
        tags: the task's tags.
        success: true if at least half of the task's episodes succeeded.
        share: share of the episodes that succeeded.
        episodes: number of episodes.
        score: mean of the benchmark's own score.
        end_reason: why the episodes ended; the most frequent reason if they differ.
        steps: mean number of env steps.
        before: ``success`` at the arm's previous evaluation; null for the first.
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
        arm: name of the arm; the baselines are ``random`` and ``warm-up``.
        step: the arm's step.
        split: split of the tasks.
        steps: all steps with an evaluation of the arm and stored results per task.
        success: success rate in [0, 1].
        low: lower bound of its 95 % confidence interval.
        high: upper bound of that interval.
        types: success by task type.
        tasks: the result of each task, in order.
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
        place: value of ``a`` or ``b`` in the query: ``runs/{run}/{arm}`` or ``evals/{name}``.
        label: display name.
        policy: name of the policy.
        success: success rate averaged over tasks.
        samples: smallest and largest number of episodes per task.
        only: number of tasks that the other side lacks.
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
        id: id of the task.
        name: name of the task.
        instruction: the task's instruction, cut with ``…`` after 300 characters.
        tags: the task's tags.
        success_a: share of A's episodes that succeeded.
        success_b: share of B's episodes that succeeded.
        link_a: path of A's episode without ``/api/``; null if it was not stored.
        link_b: path of B's episode without ``/api/``; null if it was not stored.
    """

    id: str
    name: str
    instruction: str
    tags: tuple[str, ...]
    success_a: float
    success_b: float
    link_a: str | None = None
    link_b: str | None = None


class Compared(Shape):
    """A task-by-task comparison of B against A, as computed by ``coevo compare``.

    Query: ``a`` and ``b``, each ``runs/{run}/{arm}`` (or ``runs/{run}`` for its last arm) or
    ``evals/{name}``. Without ``b``, the first and last arm of the run ``a`` are compared.

    Attributes:
        a: the first side.
        b: the second side.
        benchmark: the benchmark of both sides.
        split: split of the tasks.
        tasks: number of tasks that both sides have; all other numbers refer to these tasks.
        difference: difference of the success rates, B - A.
        low: lower bound of its 95 % confidence interval.
        high: upper bound of that interval.
        p: p-value of the test.
        test: name of the test.
        verdict: the result in one or two sentences.
        better: number of tasks on which B succeeds more often.
        worse: number of tasks on which A succeeds more often.
        both: number of tasks that both sides solve. A task counts as solved if at least half of its
            episodes succeed.
        neither: number of tasks that neither side solves.
        won: tasks that only B solves.
        lost: tasks that only A solves.
        uneven: settings that differ, each as ``what: one in A, another in B``.
        types: success of both sides by task type.
        places: everything that can be compared with A, as in ``SideInfo.place``.
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
