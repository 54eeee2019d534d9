"""Routing for the viewer's JSON API, which maps paths to handlers for the server and exports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from urllib.parse import unquote

from coevo_gym import __version__
from coevo_gym.core.kinds import Kind, registered_kinds
from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun
from coevo_gym.view.model.comparing import comparison_detail
from coevo_gym.view.model.drafts import draft_detail, draft_page
from coevo_gym.view.model.eval_tables import eval_table_detail
from coevo_gym.view.model.evals import (
    episode_detail,
    episode_page,
    eval_detail,
    eval_list,
    run_episode_detail,
    run_evaluation_detail,
)
from coevo_gym.view.model.measures import run_measures, task_set_comparison
from coevo_gym.view.model.notes import arm_notes
from coevo_gym.view.model.rounds import round_detail, round_list
from coevo_gym.view.model.run_progress import progress_of
from coevo_gym.view.model.runs import run_detail, run_list
from coevo_gym.view.model.search import search
from coevo_gym.view.model.steps import group_detail, group_page, step_table
from coevo_gym.view.model.tables import ledger_detail, table_curves, table_detail, table_list
from coevo_gym.view.model.tasks import task_detail, task_page
from coevo_gym.view.model.trajectories import trajectory_detail
from coevo_gym.view.model.trajectory_list import trajectory_page
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.rows import Shape


class About(Shape):
    """Information about a viewer or an export, such as its version and start page.

    Attributes:
        version: version of coevo_gym.
        exported: true for an export, whose files never change; false for a server.
        made_at: creation time of an export in UTC (ISO 8601); null for a server.
        left_out: sentences that list what an export leaves out; empty for a server.
        kinds: kinds of signals and contexts in display order, with labels and colours. Rows may
            contain other kinds, which are shown by name in grey.
        home: start page if the viewer shows a single run or evaluation, such as
            ``runs/quickstart``; otherwise "", to start at the list.
    """

    version: str
    exported: bool = False
    made_at: str | None = None
    left_out: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    home: str = ""


Answer = Callable[[RunCollection, Query, Mapping[str, str]], Shape]


def about(collection: RunCollection) -> About:
    """Return information about the viewer, such as its version and start page."""
    return About(
        version=__version__,
        kinds=tuple(registered_kinds()),
        home=collection.library.home,
    )


_PLAIN: Mapping[str, Callable[..., Shape]] = {
    "about": about,
    "runs": run_list,
    "runs/{run}": run_detail,
    "runs/{run}/progress": progress_of,
    "runs/{run}/measures": run_measures,
    "runs/{run}/task-set": task_set_comparison,
    "runs/{run}/arms/{arm}/steps": step_table,
    "runs/{run}/arms/{arm}/groups/{id}": group_detail,
    "runs/{run}/arms/{arm}/notes": arm_notes,
    "runs/{run}/arms/{arm}/rounds": round_list,
    "runs/{run}/arms/{arm}/rounds/{id}": round_detail,
    "runs/{run}/trajectories/{id}": trajectory_detail,
    "runs/{run}/tasks/{id}": task_detail,
    "runs/{run}/drafts/{id}": draft_detail,
    "runs/{run}/evaluations/{arm}/{step}": run_evaluation_detail,
    "runs/{run}/evaluated/{id}": run_episode_detail,
    "tables": table_list,
    "tables/{table}": table_detail,
    "tables/{table}/curves": table_curves,
    "eval-tables/{table}": eval_table_detail,
    "ledgers/{ledger}": ledger_detail,
    "evals": eval_list,
    "evals/{eval}": eval_detail,
    "evals/{eval}/episodes/{id}": episode_detail,
}
"""Handlers for paths without a query. Their arguments are the run, evaluation or collection, and
the other parts of the path in order."""
_QUERIED: Mapping[str, Callable[..., Shape]] = {
    "runs/{run}/arms/{arm}/groups": group_page,
    "runs/{run}/trajectories": trajectory_page,
    "runs/{run}/tasks": task_page,
    "runs/{run}/drafts": draft_page,
    "evals/{eval}/episodes": episode_page,
    "compare": comparison_detail,
    "search": search,
}
"""Handlers that receive the query, such as filters, as their last argument."""
_PATHS = [
    (re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,200})", path)), answer, path in _QUERIED)
    for path, answer in {**_PLAIN, **_QUERIED}.items()
]


def json_response(collection: RunCollection, path: str, query: str = "") -> bytes:
    """Return the JSON response for a path, with secrets removed.

    Args:
        collection: the runs and evaluations.
        path: the path after ``/api/``, percent-encoded.
        query: the query string, without the question mark.

    Raises:
        BadRequest: if a parameter is invalid.
        NotFound: if the path does not exist.
        Damaged: if the data behind the path cannot be read.

    Example:
        >>> json_response(collection, "runs/demo/tasks", "origin=evolved")  # doctest: +SKIP
        b'{"rows": [...'
    """
    page = make_response(collection, path, Query.parse(query))
    return collection.censor.redact(page.model_dump_json()).encode("utf-8", "replace")


def make_response(collection: RunCollection, path: str, query: Query) -> Shape:
    """Return the response model for a path; see :func:`json_response` for the arguments."""
    for pattern, make, queried in _PATHS:
        if match := pattern.fullmatch(path):
            if not queried:
                query.check_known(())
            source: RunCollection | ShownRun | ShownEval = collection
            parts = {name: unquote(value) for name, value in match.groupdict().items()}
            if "run" in parts:
                source = collection.get_run(parts.pop("run"))
            elif "eval" in parts:
                source = collection.get_evaluation(parts.pop("eval"))
            with source.reuse_reader() if isinstance(source, ShownRun) else nullcontext():
                return make(source, *parts.values(), *([query] if queried else []))
    raise NotFound(f"The path /api/{path[:200]} does not exist.")
