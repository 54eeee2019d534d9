"""Results of a search."""

from __future__ import annotations

from typing import Literal

from coevo_gym.web.view.shapes.base import Shape


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
