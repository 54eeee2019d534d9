"""Plain HTML pages that show runs without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from coevo_gym.core.kinds import kind_of
from coevo_gym.core.spaces import visible
from coevo_gym.view.export.curve import Line, Point, draw
from coevo_gym.view.model.runs import RunDetail, run_detail
from coevo_gym.view.model.tasks import task_rows
from coevo_gym.view.numbers import count, interval, percent
from coevo_gym.view.refusals import Refusal
from coevo_gym.view.shelf import Shelf, ShownRun

MOST_RUNS = 20
"""Maximum number of runs that an export shows as plain HTML."""
MOST_TASKS = 200
"""Maximum number of new tasks listed per run."""


def plain_pages(shelf: Shelf) -> Iterator[str]:
    """Yield plain HTML pages for at most :data:`MOST_RUNS` readable runs."""
    for run in shelf.runs()[:MOST_RUNS]:
        try:
            yield shelf.censor.clean(plain_page(run))
        except Refusal:
            continue


def plain_page(run: ShownRun) -> str:
    """Render a run as HTML that does not need JavaScript.

    Raises:
        Damaged: if the run cannot be read.
    """
    detail = run_detail(run)
    found = [row for row in task_rows(run) if row.step]
    return _template().render(
        run=detail,
        curve=success_curve(detail),
        tasks=found[-MOST_TASKS:],
        total=len(found),
        interval=interval,
        label=lambda kind: kind_of(kind).label,
    )


def success_curve(run: RunDetail, size: tuple[float, float] = (760.0, 300.0)) -> str:
    """Return an SVG plot of each arm's held-out success rate, or "" if no rate is known."""
    lines = [Line(arm.name, _points(run, arm.name)) for arm in run.arms if arm.trained]
    lines = [line for line in lines if any(math.isfinite(point.y) for point in line.points)]
    if not lines:
        return ""
    title = "Success on held-out tasks over env steps"
    x_label = "env steps, including exploration and gates"
    return draw(lines[::-1], title, x_label, "success", size=size)


def _points(run: RunDetail, arm: str) -> Sequence[Point]:
    def known(value: float | None) -> float:
        return math.nan if value is None else value

    return [
        Point(one.env_steps, known(one.success), known(one.low), known(one.high))
        for one in run.evaluations
        if one.arm == arm
    ]


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "count": count}
    return environment.get_template("plain.html")
