"""Search over everything shown: tasks and episodes first, then drafts, evaluations and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from coevo_gym.view.filters import WORDS
from coevo_gym.view.index.asking import find_trajectories
from coevo_gym.view.model.base import Shape
from coevo_gym.view.model.drafts import draft_rows
from coevo_gym.view.model.evals import episode_rows, eval_rows
from coevo_gym.view.model.tasks import task_rows
from coevo_gym.view.model.trajectories import id_of
from coevo_gym.view.query import Query, fold
from coevo_gym.view.refusals import BadRequest, Refusal
from coevo_gym.view.shelf import Shelf, ShownEval, ShownRun, told_as_damaged


class Hit(Shape):
    """A search result that contains all the words.

    Attributes:
        what: kind of result: ``run``, ``task``, ``trajectory``, ``draft``, ``eval`` or ``episode``.
        path: API path without ``/api/``; the page's address is ``#/`` plus this path.
        run: id of the run or evaluation.
        title: name of the result.
        text: the instruction or the actions, cut with ``…`` after 300 characters.
        note: a short remark, such as the arm and the outcome.
    """

    what: Literal["run", "task", "trajectory", "draft", "eval", "episode"]
    path: str
    run: str
    title: str
    text: str
    note: str = ""


class SearchResult(Shape):
    """The results of a search.

    Query: ``q``, words that must all occur, ignoring case; ``run`` (id; repeatable) to search only
    some runs or evaluations; ``limit`` (20), maximum number of results per kind.

    Attributes:
        q: the search words.
        hits: the results: tasks first, then trajectories, then the rest.
        totals: number of results by kind.
        read: share of episodes whose actions are already searchable, in [0, 1].
    """

    q: str
    hits: tuple[Hit, ...]
    totals: dict[str, int]
    read: float = 1.0


_KINDS = ("task", "trajectory", "draft", "eval", "episode", "run")
_MOST = 200


def search(shelf: Shelf, query: Query) -> SearchResult:
    """Return everything that contains all the words; runs that cannot be read are skipped.

    Raises:
        BadRequest: if there are no words, or a parameter is invalid.
        NotFound: if a run or evaluation does not exist.
    """
    query.check_known(("q", "run", "limit"))
    words, limit = query.words(), query.whole("limit", 20, least=1, most=_MOST)
    if not words:
        raise BadRequest("The search has no words. Set the parameter q.")
    wanted = query.all("run")
    runs = [run for run in shelf.runs() if not wanted or run.id in wanted]
    evals = [shown for shown in shelf.evals() if not wanted or shown.id in wanted]
    hits: dict[str, list[Hit]] = {kind: [] for kind in _KINDS}
    totals: dict[str, int] = {}
    read = [1.0]
    for run in runs:
        try:
            for hit, more in _in_run(run, words, limit):
                totals[hit.what] = totals.get(hit.what, 0) + more
                hits[hit.what].append(hit)
            with told_as_damaged():
                read.append(run.index.read)
        except Refusal:
            continue
    for shown in evals:
        try:
            for hit in _in_eval(shown, words):
                totals[hit.what] = totals.get(hit.what, 0) + 1
                hits[hit.what].append(hit)
        except Refusal:
            continue
    for hit in _names(shelf, words, wanted):
        totals[hit.what] = totals.get(hit.what, 0) + 1
        hits[hit.what].append(hit)
    return SearchResult(
        q=" ".join(query.all("q")),
        hits=tuple(hit for kind in _KINDS for hit in hits[kind][:limit]),
        totals=totals,
        read=min(read),
    )


def _in_run(run: ShownRun, words: Sequence[str], limit: int) -> Iterator[tuple[Hit, int]]:
    """Yield a run's hits, each with its contribution to the total count."""
    for row in task_rows(run):
        if _holds(row[WORDS], words):
            yield (
                Hit(
                    what="task",
                    path=f"runs/{run.id}/tasks/{row['id']}",
                    run=run.id,
                    title=row["name"],
                    text=row["instruction"],
                    note=row["origin"] + (f", {row['round']}" if row["round"] else ""),
                ),
                1,
            )
    pairs = [("q", " ".join(words)), ("per_page", str(limit))]
    with told_as_damaged():
        rows, paging = find_trajectories(run.index, Query(pairs))
    for place, row in enumerate(rows):
        outcome = "solved" if row["success"] else row["end_reason"]
        yield (
            Hit(
                what="trajectory",
                path=f"runs/{run.id}/trajectories/{id_of(row)}",
                run=run.id,
                title=id_of(row),
                text=row["instruction"] or "",
                note=f"{row['arm']}, step {row['step']}: {outcome}",
            ),
            1 if place else paging["total"] - len(rows) + 1,
        )
    for row in run.kept("drafts", lambda: draft_rows(run)):
        if _holds(row[WORDS], words):
            outcome = "accepted" if row["accepted"] else f"rejected by {row['gate']}"
            yield (
                Hit(
                    what="draft",
                    path=f"runs/{run.id}/drafts/{row['id']}",
                    run=run.id,
                    title=row["id"],
                    text=row["instruction"],
                    note=f"{row['arm']}, {row['round']}: {outcome}",
                ),
                1,
            )


def _in_eval(shown: ShownEval, words: Sequence[str]) -> Iterator[Hit]:
    for row in episode_rows(shown):
        if _holds(row[WORDS], words):
            yield Hit(
                what="episode",
                path=f"evals/{shown.id}/episodes/{row['id']}",
                run=shown.id,
                title=row["name"],
                text=row["instruction"],
                note="solved" if row["success"] else row["end_reason"],
            )


def _names(shelf: Shelf, words: Sequence[str], wanted: Sequence[str]) -> Iterator[Hit]:
    """Yield runs and evaluations whose names match."""
    for run in shelf.runs():
        if (not wanted or run.id in wanted) and _holds(fold(run.id), words):
            yield Hit(
                what="run",
                path=f"runs/{run.id}",
                run=run.id,
                title=run.id,
                text=str(run.folder.path),
            )
    for row in eval_rows(shelf):
        if (not wanted or row.id in wanted) and _holds(fold(f"{row.id} {row.policy}"), words):
            yield Hit(
                what="eval",
                path=f"evals/{row.id}",
                run=row.id,
                title=row.id,
                text=f"{row.policy} on {row.split} tasks of {row.benchmark}",
            )


def _holds(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)
