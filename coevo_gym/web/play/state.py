"""What the page of an episode is told: what an agent would see, and the grade once it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coevo_gym.core.task import thaw
from coevo_gym.core.trajectory import PastStep, View
from coevo_gym.web.grade import GradeInWords
from coevo_gym.web.play.api_docs import read_docs
from coevo_gym.web.play.game import Game
from coevo_gym.web.play.shop import read_shop
from coevo_gym.web.play.tools import read_tools

Json = dict[str, Any]


def state_of(game: Game) -> Json:
    """An episode as its page draws it.

    Nothing of it comes from the task but its id, name and split: all else is of the view, so no
    verifier and no solution can be in it.

    Args:
        game: an episode that has begun.

    Returns:
        ``task`` (id, name, split), ``benchmark``, ``step`` and ``max_steps``, ``instruction``,
        ``observation``, ``admissible``, ``info``, ``past`` (the steps so far: observation and
        action), and what is taken apart for the benchmark's own board: ``shop``, ``tools`` or
        ``docs``.
    """
    view = game.view
    info = {key: thaw(value) for key, value in view.info.items()}
    admissible = info.pop("admissible", [])
    benchmark = game.task.benchmark
    board = _BOARDS.get(benchmark)
    found = board(view, info) if board else {}
    return {
        "task": {"id": game.task.id, "name": game.task.name, "split": str(game.task.split)},
        "benchmark": benchmark,
        "step": len(view.history),
        "max_steps": game.max_steps,
        "instruction": view.instruction,
        "observation": view.observation,
        "admissible": list(admissible),
        "info": info,
        "past": [_past(step) for step in view.history],
        **found,
    }


def _past(step: PastStep) -> Json:
    return {"observation": step.observation, "action": step.action}


def grade_json(grade: GradeInWords) -> Json:
    """A grade for the page."""
    return {**grade._asdict(), "checks": [check._asdict() for check in grade.checks]}


def _shop(view: View, info: Json) -> Json:
    page = read_shop(view)
    return {} if page is None else {"shop": _plain(page)}


def _tools(view: View, info: Json) -> Json:
    info.pop("bfcl.tools", None)
    tools = read_tools(view)
    told = [{**_plain(tool), "signature": tool.signature} for tool in tools]
    return {"tools": told}


def _docs(view: View, info: Json) -> Json:
    return {"docs": read_docs(view)}


_BOARDS: Mapping[str, Callable[[View, Json], Json]] = {
    "webshop": _shop,
    "bfcl": _tools,
    "appworld": _docs,
}


def _plain(value: Any) -> Any:
    """Named tuples as objects, to any depth."""
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
