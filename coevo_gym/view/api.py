"""Routing of the viewer's JSON API: every path and its handler, for both server and export."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from coevo_gym import __version__
from coevo_gym.core.kinds import kinds
from coevo_gym.view.model import advice, comparing, drafts, evals, notes, rounds, runs, steps, tasks
from coevo_gym.view.model import search as searching
from coevo_gym.view.model import task_set as task_sets
from coevo_gym.view.model import trajectories as episodes
from coevo_gym.view.model.measures import run_measures
from coevo_gym.view.model.progress import progress_of
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.shapes.base import About, KindInfo, Shape
from coevo_gym.view.shelf import Shelf

Answer = Callable[[Shelf, Query, Mapping[str, str]], Shape]


def about(shelf: Shelf) -> About:
    """Return the contents and the version of this viewer."""
    return About(
        version=__version__,
        kinds=tuple(
            KindInfo(
                name=kind.name,
                label=kind.label,
                colour=kind.colour,
                dark=kind.dark,
                fires=kind.fires,
            )
            for kind in kinds()
        ),
        home=shelf.library.home,
    )


_PLAIN: Mapping[str, Answer] = {
    "about": lambda shelf, query, _: about(shelf),
    "runs": lambda shelf, query, _: runs.run_list(shelf),
    "runs/{run}": lambda shelf, query, of: runs.run_detail(shelf.run(of["run"])),
    "runs/{run}/progress": lambda shelf, query, of: progress_of(shelf.run(of["run"])),
    "runs/{run}/measures": lambda shelf, query, of: run_measures(shelf.run(of["run"])),
    "runs/{run}/task-set": lambda shelf, query, of: task_sets.task_set(shelf.run(of["run"])),
    "runs/{run}/arms/{arm}/steps": lambda shelf, query, of: steps.step_table(
        shelf.run(of["run"]), of["arm"]
    ),
    "runs/{run}/arms/{arm}/groups/{id}": lambda shelf, query, of: steps.group_detail(
        shelf.run(of["run"]), of["arm"], of["id"]
    ),
    "runs/{run}/arms/{arm}/notes": lambda shelf, query, of: notes.arm_notes(
        shelf.run(of["run"]), of["arm"]
    ),
    "runs/{run}/arms/{arm}/advice": lambda shelf, query, of: advice.arm_advice(
        shelf.run(of["run"]), of["arm"]
    ),
    "runs/{run}/arms/{arm}/rounds": lambda shelf, query, of: rounds.round_list(
        shelf.run(of["run"]), of["arm"]
    ),
    "runs/{run}/arms/{arm}/rounds/{id}": lambda shelf, query, of: rounds.round_detail(
        (run := shelf.run(of["run"])),
        of["arm"],
        of["id"],
        drafts.drafts_of_round(run, of["arm"], of["id"]),
    ),
    "runs/{run}/trajectories/{id}": lambda shelf, query, of: episodes.trajectory_detail(
        shelf.run(of["run"]), of["id"]
    ),
    "runs/{run}/tasks/{id}": lambda shelf, query, of: tasks.task_detail(
        shelf.run(of["run"]), of["id"]
    ),
    "runs/{run}/drafts/{id}": lambda shelf, query, of: drafts.draft_detail(
        shelf.run(of["run"]), of["id"]
    ),
    "runs/{run}/evaluations/{arm}/{step}": lambda shelf, query, of: evals.evaluation_detail(
        shelf.run(of["run"]), of["arm"], of["step"]
    ),
    "evals": lambda shelf, query, _: evals.eval_list(shelf),
    "evals/{name}": lambda shelf, query, of: evals.eval_detail(shelf.evaluation(of["name"])),
    "evals/{name}/episodes/{id}": lambda shelf, query, of: evals.episode_detail(
        shelf.evaluation(of["name"]), of["id"]
    ),
}
"""Handlers of paths without parameters in the path."""
_QUERIED: Mapping[str, Answer] = {
    "runs/{run}/arms/{arm}/groups": lambda shelf, query, of: steps.group_page(
        shelf.run(of["run"]), of["arm"], query
    ),
    "runs/{run}/trajectories": lambda shelf, query, of: episodes.trajectory_page(
        shelf.run(of["run"]), query
    ),
    "runs/{run}/tasks": lambda shelf, query, of: tasks.task_page(shelf.run(of["run"]), query),
    "runs/{run}/drafts": lambda shelf, query, of: drafts.draft_page(shelf.run(of["run"]), query),
    "evals/{name}/episodes": lambda shelf, query, of: evals.episode_page(
        shelf.evaluation(of["name"]), query
    ),
    "compare": lambda shelf, query, _: comparing.compared(shelf, query),
    "search": lambda shelf, query, _: searching.search(shelf, query),
}
"""Handlers of paths with query parameters, such as filters."""
_PATHS = [
    (re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,200})", path)), answer, path in _QUERIED)
    for path, answer in {**_PLAIN, **_QUERIED}.items()
]


def answer(shelf: Shelf, path: str, query: str = "") -> bytes:
    """Return the JSON response for a path, without secrets.

    Args:
        shelf: the runs and evaluations.
        path: the path after ``/api/``, percent-encoded.
        query: the query string, without the question mark.

    Raises:
        BadRequest: if a parameter is invalid.
        NotFound: if the path does not exist.
        Damaged: if the data behind the path cannot be read.

    Example:
        >>> answer(shelf, "runs/quickstart/trajectories", "success=false")  # doctest: +SKIP
        b'{"rows": [...'
    """
    found = shape_of(shelf, path, Query.read(query))
    return shelf.censor.clean(found.model_dump_json()).encode("utf-8", "replace")


def shape_of(shelf: Shelf, path: str, query: Query) -> Shape:
    """Return the response model for a path, with arguments as in :func:`answer`."""
    for pattern, make, queried in _PATHS:
        if match := pattern.fullmatch(path):
            if not queried:
                query.check_known(())
            of = {name: unquote(value) for name, value in match.groupdict().items()}
            return make(shelf, query, of)
    raise NotFound(f"The path /api/{path[:200]} does not exist.")
