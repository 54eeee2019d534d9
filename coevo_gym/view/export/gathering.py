"""The contents of an export: API responses, and plain HTML pages for readers without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, permutations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from coevo_gym.core.kinds import get_kind
from coevo_gym.core.spaces import make_visible
from coevo_gym.core.task import Split
from coevo_gym.view.api import make_response
from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun
from coevo_gym.view.export.curve import Line, Point, draw_chart
from coevo_gym.view.filters import paging_of
from coevo_gym.view.model.drafts import draft_rows
from coevo_gym.view.model.evals import episode_rows, run_episode_rows
from coevo_gym.view.model.runs import RunDetail, run_detail
from coevo_gym.view.model.search import (
    KINDS,
    draft_hits,
    episode_hits,
    folder_hits,
    task_hits,
    trajectory_hit,
)
from coevo_gym.view.model.steps import group_rows
from coevo_gym.view.model.tasks import task_rows
from coevo_gym.view.model.trajectory_list import all_trajectories, failure_kinds
from coevo_gym.view.numbers import format_count, format_interval, format_percent
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import Refusal
from coevo_gym.view.rows import ListRow

MAX_COMPARED = 12
"""Maximum number of arms and evaluations that an export compares in pairs."""
MAX_RUNS = 20
"""Maximum number of runs that an export shows as plain HTML."""
MAX_TASKS = 200
"""Maximum number of new tasks listed per run in plain HTML."""
_WALKED = ("walks", "evidence", "contrast")
"""Fields that contain the steps of exploration walks and of the rollouts before these walks."""

Json = dict[str, Any]


class Response(NamedTuple):
    """An API response that is stored in an export.

    Attributes:
        path: the response's path, without ``/api/``.
        value: the response as JSON.
    """

    path: str
    value: Json


class ExportedPage(NamedTuple):
    """A page that an export includes if there is enough room.

    Attributes:
        path: the page's path.
        of: the run or evaluation that the page belongs to.
        kind: plural noun for the kind of page, such as ``tasks``.
    """

    path: str
    of: str
    kind: str


def responses_to_export(collection: RunCollection, *, episodes: bool = True) -> Iterator[Response]:
    """Yield the API responses that an export includes, such as the list of runs and their data.

    Runs that cannot be read are skipped.

    Args:
        collection: the runs and evaluations.
        episodes: True to include lists of episodes, and the rollouts and walks in rounds.
    """
    yield _request(collection, "runs")
    yield _request(collection, "evals")
    yield from _table_responses(collection)
    if episodes:
        yield Response("search", {"hits": list(_all_hits(collection))})
    for run in collection.runs():
        with suppress(Refusal):
            yield from list(_run_responses(collection, run, episodes=episodes))
    for evaluation in collection.evals():
        with suppress(Refusal):
            yield from list(_eval_responses(collection, evaluation))
    yield from _comparison_responses(collection)


def pages_to_export(
    collection: RunCollection, *, held_out: bool, episodes: bool = True
) -> Iterator[ExportedPage]:
    """Yield the pages to export, alternating between kinds, with the latest of each kind first.

    Args:
        collection: the runs and evaluations.
        held_out: True to include the episodes of evaluations on validation and test tasks.
        episodes: False to yield only the pages for tasks.
    """
    of_run = (
        (_group_pages, _task_pages, _draft_pages, _episode_pages) if episodes else (_task_pages,)
    )
    parts = [_list_if_readable(part(run)) for run in collection.runs() for part in of_run]
    if episodes and held_out:
        parts += [_list_if_readable(_evaluated_pages(run)) for run in collection.runs()]
    if episodes:
        parts += [
            _list_if_readable(_eval_episode_pages(evaluation, held_out))
            for evaluation in collection.evals()
        ]
    yield from filter(None, chain.from_iterable(zip_longest(*parts)))


def has_held_out_episodes(collection: RunCollection) -> bool:
    """Return True if an export leaves out episodes of evaluations on held-out tasks by default."""
    for run in collection.runs():
        with suppress(Refusal):
            if run_episode_rows(run):
                return True
    for evaluation in collection.evals():
        with suppress(Refusal):
            if evaluation.config["split"] != Split.TRAIN and evaluation.episode_lines:
                return True
    return False


def _list_if_readable(pages: Iterator[ExportedPage]) -> list[ExportedPage]:
    with suppress(Refusal):
        return list(pages)
    return []


def _group_pages(run: ShownRun) -> Iterator[ExportedPage]:
    for arm in run.config.arms:
        for group in reversed(group_rows(run, arm)):
            yield ExportedPage(f"runs/{run.id}/arms/{arm}/groups/{group.id}", run.id, "groups")


def _task_pages(run: ShownRun) -> Iterator[ExportedPage]:
    for row in reversed(task_rows(run)):
        yield ExportedPage(f"runs/{run.id}/tasks/{row.id}", run.id, "tasks")


def _draft_pages(run: ShownRun) -> Iterator[ExportedPage]:
    for id in dict.fromkeys(row.id for row in reversed(draft_rows(run))):
        yield ExportedPage(f"runs/{run.id}/drafts/{id}", run.id, "drafts")


def _episode_pages(run: ShownRun) -> Iterator[ExportedPage]:
    for row in reversed(all_trajectories(run)):
        yield ExportedPage(f"runs/{run.id}/trajectories/{row.id}", run.id, "episodes")


def _evaluated_pages(run: ShownRun) -> Iterator[ExportedPage]:
    for row in reversed(run_episode_rows(run)):
        yield ExportedPage(f"runs/{run.id}/evaluated/{row.id}", run.id, "episodes")


def _eval_episode_pages(evaluation: ShownEval, held_out: bool) -> Iterator[ExportedPage]:
    if held_out or evaluation.config["split"] == Split.TRAIN:
        for episode in episode_rows(evaluation):
            if episode.stored:
                path = f"evals/{evaluation.id}/episodes/{episode.id}"
                yield ExportedPage(path, evaluation.id, "episodes")


def page_response(
    collection: RunCollection, path: str, *, episodes: bool = True
) -> Response | None:
    """Return the response for a page, or None if its data cannot be read.

    Args:
        collection: the runs and evaluations.
        path: path of the page.
        episodes: True to include rollouts and walks.
    """
    try:
        response = _request(collection, path)
    except Refusal:
        return None
    return response if episodes else _without_walks(response)


def _without_walks(response: Response) -> Response:
    """Return a copy of a response without the steps of its rollouts and walks."""

    def without_steps(value: Any) -> Any:
        if isinstance(value, list):
            return [without_steps(one) for one in value]
        if not isinstance(value, dict):
            return value
        empty: Json = {name: [] for name in _WALKED if isinstance(value.get(name), list)}
        left = {k: v for k, v in value.items() if k not in empty}
        return {name: without_steps(one) for name, one in left.items()} | empty

    return Response(response.path, without_steps(response.value))


def _request(collection: RunCollection, path: str, query: Query | None = None) -> Response:
    return Response(path, make_response(collection, path, query or Query()).model_dump(mode="json"))


def _run_responses(
    collection: RunCollection, run: ShownRun, *, episodes: bool
) -> Iterator[Response]:
    at = f"runs/{run.id}"
    detail = _request(collection, at)
    yield detail
    yield _request(collection, f"{at}/progress")
    yield _request(collection, f"{at}/measures")
    yield _request(collection, f"{at}/task-set")
    if episodes:
        rows = _rows_to_json(all_trajectories(run))
        yield Response(f"{at}/trajectories", {**rows, "failures": list(failure_kinds(run))})
    yield Response(f"{at}/tasks", _rows_to_json(task_rows(run)))
    rejected = _request(collection, f"{at}/drafts").value
    yield Response(f"{at}/drafts", {**rejected, **_rows_to_json(draft_rows(run))})
    for arm in run.config.arms:
        yield _request(collection, f"{at}/arms/{arm}/steps")
        yield _request(collection, f"{at}/arms/{arm}/notes")
        rounds = _request(collection, f"{at}/arms/{arm}/rounds")
        yield rounds
        for one in rounds.value["rows"]:
            response = _request(collection, f"{at}/arms/{arm}/rounds/{one['id']}")
            yield response if episodes else _without_walks(response)
        yield Response(f"{at}/arms/{arm}/groups", _rows_to_json(group_rows(run, arm)))
    for point in detail.value["evaluations"] if episodes else ():
        if point["kept"]:
            yield _request(collection, f"{at}/evaluations/{point['arm']}/{point['step']}")


def _table_responses(collection: RunCollection) -> Iterator[Response]:
    """Yield the list of tables, and the tables that can be read."""
    tables = _request(collection, "tables")
    yield tables
    paths = [
        *(f"tables/{table['id']}" for table in tables.value["tables"]),
        *(f"tables/{table['id']}/curves" for table in tables.value["tables"]),
        *(f"eval-tables/{table['id']}" for table in tables.value["eval_tables"]),
        *(f"ledgers/{ledger['id']}" for ledger in tables.value["ledgers"]),
    ]
    for path in paths:
        with suppress(Refusal):
            yield _request(collection, path)


def _eval_responses(collection: RunCollection, evaluation: ShownEval) -> Iterator[Response]:
    yield _request(collection, f"evals/{evaluation.id}")
    yield Response(f"evals/{evaluation.id}/episodes", _rows_to_json(episode_rows(evaluation)))


def _comparison_responses(collection: RunCollection) -> Iterator[Response]:
    """Yield comparisons of arms and evaluations that share tasks, up to a limit."""
    places: list[str] = []
    for run in collection.runs():
        with suppress(Refusal):
            points = _request(collection, f"runs/{run.id}").value["evaluations"]
            arms = dict.fromkeys(point["arm"] for point in points if point["kept"])
            places += [f"runs/{run.id}/{arm}" for arm in arms]
    places += [f"evals/{evaluation.id}" for evaluation in collection.evals()]
    for a, b in permutations(places[:MAX_COMPARED], 2):
        comparison = _compare(collection, a, b)
        if comparison is not None:
            yield Response(f"compare?a={a}&b={b}", comparison)
    for run in collection.runs():
        comparison = _compare(collection, f"runs/{run.id}", None)
        if comparison is not None:
            yield Response(f"compare?a=runs/{run.id}&b=", comparison)


def _compare(collection: RunCollection, a: str, b: str | None) -> Json | None:
    pairs = [("a", a), *([("b", b)] if b else [])]
    try:
        return _request(collection, "compare", Query(pairs)).value
    except Refusal:
        return None  # no common tasks


def _all_hits(collection: RunCollection) -> Iterator[Json]:
    """Yield every possible search result, in display order."""
    hits = list(folder_hits(collection))
    for run in collection.runs():
        with suppress(Refusal):
            hits += task_hits(run)
            hits += [trajectory_hit(run, row) for row in all_trajectories(run)]
            hits += draft_hits(run)
    for evaluation in collection.evals():
        with suppress(Refusal):
            hits += episode_hits(evaluation)
    for hit in sorted(hits, key=lambda hit: KINDS.index(hit.what)):
        yield hit.to_export_json()


def _rows_to_json(rows: Sequence[ListRow]) -> Json:
    return {
        "rows": [row.to_export_json() for row in rows],
        **paging_of(len(rows), 1, max(1, len(rows))),
    }


def render_plain_pages(collection: RunCollection) -> Iterator[str]:
    """Yield plain HTML pages for at most :data:`MAX_RUNS` readable runs."""
    for run in collection.runs()[:MAX_RUNS]:
        try:
            yield collection.censor.redact(render_run_page(run))
        except Refusal:
            continue


def render_run_page(run: ShownRun) -> str:
    """Render a run as HTML that does not need JavaScript.

    Raises:
        Damaged: if the run cannot be read.
    """
    detail = run_detail(run)
    new_tasks = [row for row in task_rows(run) if row.step]
    return load_template("plain.html").render(
        run=detail,
        curve=success_curve(detail),
        tasks=new_tasks[-MAX_TASKS:],
        total=len(new_tasks),
        interval=format_interval,
        label=lambda kind: get_kind(kind).label,
    )


def success_curve(run: RunDetail, size: tuple[float, float] = (760.0, 300.0)) -> str:
    """Return an SVG plot of each arm's held-out success rate, or "" if no rate is known."""
    lines = [Line(arm.name, _success_points(run, arm.name)) for arm in run.arms if arm.trained]
    lines = [line for line in lines if any(math.isfinite(point.y) for point in line.points)]
    if not lines:
        return ""
    title = "Success on held-out tasks over env steps"
    x_label = "env steps, including exploration and gates"
    return draw_chart(lines[::-1], title, x_label, "success", size=size)


def _success_points(run: RunDetail, arm: str) -> Sequence[Point]:
    def or_nan(value: float | None) -> float:
        return math.nan if value is None else value

    return [
        Point(one.env_steps, or_nan(one.success), or_nan(one.low), or_nan(one.high))
        for one in run.evaluations
        if one.arm == arm
    ]


@cache
def load_template(name: str) -> Template:
    """Return a template for a page without JavaScript, by its file name."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: make_visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": format_percent, "count": format_count}
    return environment.get_template(name)
