"""Comparisons of two policies on the same tasks: ``coevo compare`` plus links to pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.evals.comparison import ChangedTask, ComparedType, Comparison, Side, compare
from coevo_gym.runs.evals.sides import find_sides
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.view.model.base import Shape, brief
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import BadRequest, Damaged, NotFound
from coevo_gym.view.shelf import Shelf, told_as_damaged


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


Link = Callable[[str], str | None]


def compared(shelf: Shelf, query: Query) -> Compared:
    """Compare two sides, B against A.

    Raises:
        BadRequest: if a side is not specified, or the sides share no task.
        NotFound: if a run, arm or evaluation does not exist.
        Damaged: if a side cannot be read.
    """
    query.check_known(("a", "b"))
    a, b = query.one("a"), query.one("b")
    if a is None:
        raise BadRequest("Nothing to compare. Set a and b, as in a=runs/RUN/ARM, b=evals/NAME.")
    if b is None:
        a, b = _arms_of(shelf, a)
    first, second = _Side(shelf, a), _Side(shelf, b)
    try:
        with told_as_damaged():
            sides = find_sides(first.path, second.path, [s.arm for s in (first, second) if s.arm])
            found = compare(*sides)
    except Damaged as error:
        if isinstance(error.__cause__, ConfigError):
            raise BadRequest(str(error)) from error
        raise
    return _told(found, sides, (first, second), _places(shelf, found))


class _Side:
    """A side of a comparison, from its parameter; ids are looked up, never made into paths."""

    def __init__(self, shelf: Shelf, place: str) -> None:
        self.kind, _, rest = place.partition("/")
        self.id, _, self.arm = rest.partition("/")
        self._shelf = shelf
        if self.kind == "runs":
            run = shelf.run(self.id)
            self.path = str(run.folder.path)
            self.arm = self.arm or run.config.arms[-1]
        elif self.kind == "evals" and not self.arm:
            self.path = str(shelf.evaluation(self.id).folder.path)
        else:
            raise NotFound(f"{place[:100]!r} cannot be compared. Use runs/RUN/ARM or evals/NAME.")

    @property
    def place(self) -> str:
        return f"{self.kind}/{self.id}" + (f"/{self.arm}" if self.arm else "")

    def link(self) -> Link:
        """Return a function that maps a task to its episode's link; only evaluations have links."""
        if self.kind == "runs":
            return lambda task: None
        shown = self._shelf.evaluation(self.id)
        with told_as_damaged():
            kept = shown.reader.eval_episodes_kept(shown.config["policy"])
        first = {task: sample for task, sample in sorted(kept, reverse=True)}
        return lambda task: (
            f"evals/{self.id}/episodes/{task}.{first[task]}" if task in first else None
        )


def _arms_of(shelf: Shelf, place: str) -> tuple[str, str]:
    """Return two arms of a run: the named arm or the first, and the last."""
    kind, _, rest = place.partition("/")
    id, _, arm = rest.partition("/")
    if kind != "runs":
        raise BadRequest("An evaluation contains only one policy: set b, too.")
    arms = shelf.run(id).config.arms
    return f"runs/{id}/{arm or arms[0]}", f"runs/{id}/{arms[-1]}"


def _told(
    found: Comparison,
    sides: tuple[Side, Side],
    places: tuple[_Side, _Side],
    others: Sequence[str],
) -> Compared:
    links = [place.link() for place in places]

    def changed(tasks: Sequence[ChangedTask]) -> tuple[ChangedTaskRow, ...]:
        return tuple(
            ChangedTaskRow(
                id=task.id,
                name=task.name,
                instruction=brief(task.instruction),
                tags=task.tags,
                success_a=task.success_a,
                success_b=task.success_b,
                link_a=links[0](task.id),
                link_b=links[1](task.id),
            )
            for task in tasks
        )

    several = max(*found.samples_a, *found.samples_b) > 1
    numbers = (
        (found.a, found.success_a, found.samples_a, found.only_in_a),
        (found.b, found.success_b, found.samples_b, found.only_in_b),
    )
    infos = [
        SideInfo(
            place=place.place,
            label=label,
            policy=side.policy,
            success=success,
            samples=samples,
            only=only,
        )
        for place, side, (label, success, samples, only) in zip(places, sides, numbers, strict=True)
    ]
    return Compared(
        a=infos[0],
        b=infos[1],
        benchmark=found.benchmark,
        split=found.split,
        tasks=found.tasks,
        difference=found.difference,
        low=found.low,
        high=found.high,
        p=found.p,
        test="sign test over tasks" if several else "McNemar's exact test",
        verdict=found.verdict,
        better=found.better,
        worse=found.worse,
        both=found.both,
        neither=found.neither,
        won=changed(found.won),
        lost=changed(found.lost),
        uneven=found.uneven,
        types=found.types,
        places=tuple(others),
    )


def _places(shelf: Shelf, found: Comparison) -> list[str]:
    """Return everything that played the same tasks: arms of runs, and evaluations."""
    places = []
    for run in shelf.runs():
        try:
            config = run.config
            same = (config.benchmark.name, config.evaluation.split)
            if same == (found.benchmark, found.split):
                kept = run.reader
                names = (RANDOM, WARMUP, *config.arms)
                places += [f"runs/{run.id}/{arm}" for arm in names if kept.evaluation_steps(arm)]
        except (Damaged, NotFound):
            continue  # the list of runs shows the problem
    for shown in shelf.evals():
        try:
            config_: Mapping[str, object] = shown.config
            if (config_["benchmark"], config_["split"]) == (found.benchmark, found.split):
                places.append(f"evals/{shown.id}")
        except Damaged:
            continue
    return places
