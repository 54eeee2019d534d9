"""Comparisons of two policies on the same tasks, with links to the episodes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.evals.comparison import ChangedTask, Comparison, compare
from coevo_gym.runs.evals.sides import find_sides
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.view.collection import RunCollection, raise_as_damaged
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import BadRequest, Damaged, NotFound
from coevo_gym.view.rows import Shape, one_line


class Compared(Shape):
    """A task-by-task comparison of two policies, A and B, as computed by ``coevo compare``.

    Query: ``a`` and ``b``, each ``runs/{run}/{arm}`` (or ``runs/{run}`` for its last arm) or
    ``evals/{name}``. Without ``b``, the first and last arm of the run ``a`` are compared.

    Attributes:
        found: the comparison; instructions are truncated to 300 characters.
        verdict: the result in one or two sentences.
        test: name of the test behind ``found.p``.
        place_a: value of ``a`` in the query: ``runs/{run}/{arm}`` or ``evals/{name}``.
        place_b: value of ``b``.
        links_a: A's stored episodes (paths without ``/api/``) by task, if only one side solves it.
        links_b: paths of B's stored episodes in the same format.
        places: all arms and evaluations that can be compared with A, in the format of ``place_a``.
    """

    found: Comparison
    verdict: str
    test: str
    place_a: str
    place_b: str
    links_a: dict[str, str]
    links_b: dict[str, str]
    places: tuple[str, ...] = ()


def comparison_detail(collection: RunCollection, query: Query) -> Compared:
    """Compare policy B with policy A on the same tasks.

    Raises:
        BadRequest: if a side is not specified, or the sides have no common tasks.
        NotFound: if a run, arm or evaluation does not exist.
        Damaged: if a side cannot be read.
    """
    query.check_known(("a", "b"))
    a, b = query.one("a"), query.one("b")
    if a is None:
        raise BadRequest("Nothing to compare. Set a and b, for example a=runs/RUN, b=evals/NAME.")
    if b is None:
        a, b = _default_sides(collection, a)
    first, second = _Side(collection, a), _Side(collection, b)
    try:
        with raise_as_damaged():
            arms = [side.arm for side in (first, second) if side.arm]
            comparison = compare(*find_sides(first.path, second.path, arms))
    except Damaged as error:
        if isinstance(error.__cause__, ConfigError):
            raise BadRequest(str(error)) from error
        raise
    won, lost = map(_shorten_instructions, (comparison.won, comparison.lost))
    changed = [task.id for task in (*won, *lost)]
    return Compared(
        found=replace(comparison, won=won, lost=lost),
        verdict=comparison.verdict,
        test=comparison.test_name,
        place_a=first.place,
        place_b=second.place,
        links_a=first.episode_links(changed),
        links_b=second.episode_links(changed),
        places=tuple(_comparable_sides(collection, comparison)),
    )


class _Side:
    """One side of a comparison, such as ``evals/NAME``. Ids are never used as file paths."""

    def __init__(self, collection: RunCollection, place: str) -> None:
        self.kind, _, rest = place.partition("/")
        self.id, _, self.arm = rest.partition("/")
        self._collection = collection
        if self.kind == "runs":
            run = collection.get_run(self.id)
            self.path = str(run.folder.path)
            self.arm = self.arm or run.config.arms[-1]
        elif self.kind == "evals" and not self.arm:
            self.path = str(collection.get_evaluation(self.id).folder.path)
        else:
            raise NotFound(f"{place[:100]!r} cannot be compared. Use runs/RUN/ARM or evals/NAME.")

    @property
    def place(self) -> str:
        return f"{self.kind}/{self.id}" + (f"/{self.arm}" if self.arm else "")

    def episode_links(self, tasks: Iterable[str]) -> dict[str, str]:
        """Map tasks to the paths of their first stored episodes. Return {} for a run."""
        if self.kind == "runs":
            return {}
        evaluation = self._collection.get_evaluation(self.id)
        with raise_as_damaged():
            episodes = evaluation.reader.stored_eval_episodes(evaluation.config["policy"], 0)
        first = {task: sample for task, sample in sorted(episodes, reverse=True)}
        return {
            task: f"evals/{self.id}/episodes/{task}.{first[task]}"
            for task in tasks
            if task in first
        }


def _default_sides(collection: RunCollection, place: str) -> tuple[str, str]:
    """Return two arms of a run: the given arm (by default the first) and the last arm."""
    kind, _, rest = place.partition("/")
    id, _, arm = rest.partition("/")
    if kind != "runs":
        raise BadRequest("Nothing to compare the evaluation with. Set b, for example b=evals/NAME.")
    arms = collection.get_run(id).config.arms
    return f"runs/{id}/{arm or arms[0]}", f"runs/{id}/{arms[-1]}"


def _shorten_instructions(tasks: Iterable[ChangedTask]) -> tuple[ChangedTask, ...]:
    return tuple(replace(task, instruction=one_line(task.instruction)) for task in tasks)


def _comparable_sides(collection: RunCollection, comparison: Comparison) -> list[str]:
    """Return the arms and evaluations that can be compared with each other."""
    places, wanted = [], (comparison.benchmark, comparison.split)
    for run in collection.runs():
        with suppress(Damaged):  # the list of runs shows the problem
            config = run.config
            if (config.benchmark.name, config.evaluation.split) == wanted:
                reader = run.reader
                names = (RANDOM, WARMUP, *config.arms)
                places += [f"runs/{run.id}/{arm}" for arm in names if reader.evaluation_steps(arm)]
    for evaluation in collection.evals():
        with suppress(Damaged):
            if (evaluation.config["benchmark"], evaluation.config["split"]) == wanted:
                places.append(f"evals/{evaluation.id}")
    return places
