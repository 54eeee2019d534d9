"""A search for tasks and episodes, then drafts, evaluations and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal

from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun
from coevo_gym.view.model.drafts import draft_rows
from coevo_gym.view.model.evals import episode_rows, eval_rows
from coevo_gym.view.model.tasks import task_rows
from coevo_gym.view.model.trajectory_list import TrajectoryRow, trajectory_page
from coevo_gym.view.query import Query, to_lower_case
from coevo_gym.view.refusals import BadRequest, Refusal
from coevo_gym.view.rows import ListRow, Shape


class Hit(ListRow):
    """A search result, which matches all search terms.

    Attributes:
        what: kind of result: ``run``, ``task``, ``trajectory``, ``draft``, ``eval`` or ``episode``.
        path: API path without ``/api/``; the page's address is ``#/`` plus this path.
        run: id of the run or evaluation.
        title: name of the result.
        text: the instruction or the actions, truncated to 300 characters.
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
        hits: the results: tasks first, then trajectories, then all other kinds.
        totals: number of results by kind.
    """

    q: str
    hits: tuple[Hit, ...]
    totals: dict[str, int]


KINDS = ("task", "trajectory", "draft", "eval", "episode", "run")
"""Kinds of results in display order."""
_MAX_HITS = 200


def search(collection: RunCollection, query: Query) -> SearchResult:
    """Return the search results that contain all words in the query. Skip runs that cannot be read.

    Raises:
        BadRequest: if there are no words, or a parameter is invalid.
        NotFound: if a run or evaluation does not exist.
    """
    query.check_known(("q", "run", "limit"))
    words, limit = query.words(), query.integer("limit", 20, least=1, most=_MAX_HITS)
    if not words:
        raise BadRequest("The search query is empty. Set the q parameter.")
    wanted = query.all("run")
    hits: dict[str, list[Hit]] = {kind: [] for kind in KINDS}
    totals = Counter[str]()

    def add_matches(more: Iterable[Hit]) -> None:
        for hit in more:
            if (not wanted or hit.run in wanted) and all(word in hit.words for word in words):
                totals[hit.what] += 1
                hits[hit.what].append(hit)

    for run in collection.runs():
        if wanted and run.id not in wanted:
            continue
        with suppress(Refusal):
            add_matches(task_hits(run))
            pairs = [("q", " ".join(words)), ("per_page", str(limit))]
            page = trajectory_page(run, Query(pairs))
            totals["trajectory"] += page.total
            hits["trajectory"] += [trajectory_hit(run, row) for row in page.rows]
            add_matches(draft_hits(run))
    for evaluation in collection.evals():
        if not wanted or evaluation.id in wanted:
            with suppress(Refusal):
                add_matches(episode_hits(evaluation))
    add_matches(folder_hits(collection))
    return SearchResult(
        q=" ".join(query.all("q")),
        hits=tuple(hit for kind in KINDS for hit in hits[kind][:limit]),
        totals={kind: n for kind, n in totals.items() if n},
    )


def task_hits(run: ShownRun) -> Iterator[Hit]:
    """Yield a search result for each task of a run."""
    for row in task_rows(run):
        yield Hit(
            what="task",
            path=f"runs/{run.id}/tasks/{row.id}",
            run=run.id,
            title=row.name,
            text=row.instruction,
            note=row.origin + (f", {row.round}" if row.round else ""),
            words=row.words,
        )


def trajectory_hit(run: ShownRun, row: TrajectoryRow) -> Hit:
    """Return a training episode of a run as a search result."""
    outcome = "solved" if row.success else row.end_reason
    return Hit(
        what="trajectory",
        path=f"runs/{run.id}/trajectories/{row.id}",
        run=run.id,
        title=row.id,
        text=row.task.instruction,
        note=f"{row.arm}, step {row.step}: {outcome}",
        words=row.words,
    )


def draft_hits(run: ShownRun) -> Iterator[Hit]:
    """Yield a search result for each draft of a run."""
    for row in draft_rows(run):
        outcome = "accepted" if row.accepted else f"rejected by {row.gate}"
        yield Hit(
            what="draft",
            path=f"runs/{run.id}/drafts/{row.id}",
            run=run.id,
            title=row.id,
            text=row.instruction,
            note=f"{row.arm}, {row.round}: {outcome}",
            words=row.words,
        )


def episode_hits(evaluation: ShownEval) -> Iterator[Hit]:
    """Yield a search result for each episode of an evaluation."""
    for row in episode_rows(evaluation):
        yield Hit(
            what="episode",
            path=f"evals/{evaluation.id}/episodes/{row.id}",
            run=evaluation.id,
            title=row.name,
            text=row.instruction,
            note="solved" if row.success else row.end_reason,
            words=row.words,
        )


def folder_hits(collection: RunCollection) -> Iterator[Hit]:
    """Yield every run and every evaluation as a candidate search result."""
    for run in collection.runs():
        yield Hit(
            what="run",
            path=f"runs/{run.id}",
            run=run.id,
            title=run.id,
            text=str(run.folder.path),
            words=to_lower_case(run.id),
        )
    for row in eval_rows(collection):
        yield Hit(
            what="eval",
            path=f"evals/{row.id}",
            run=row.id,
            title=row.id,
            text=f"{row.policy} on {row.split} tasks of {row.benchmark}",
            words=to_lower_case(f"{row.id} {row.policy}"),
        )
