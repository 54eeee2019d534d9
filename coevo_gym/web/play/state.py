"""The state of an episode for its page: the agent's view, and the grade once it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coevo_gym.core.task import thaw
from coevo_gym.core.trajectory import PastStep, View
from coevo_gym.web.grade import GradeInWords
from coevo_gym.web.play.api_docs import read_docs
from coevo_gym.web.play.game import PlayedGame
from coevo_gym.web.play.shop import read_shop
from coevo_gym.web.play.tools import read_tools

Json = dict[str, Any]


def state_of(game: PlayedGame) -> Json:
    """Return the state of an episode for its page.

    Only the id, name and split come from the task; everything else comes from the view. So the
    state contains no verifier and no solution.

    Args:
        game: an episode that has begun.

    Returns:
        ``task`` (id, name, split), ``benchmark``, ``step`` and ``max_steps``, ``instruction``,
        ``observation``, ``admissible``, ``info``, ``past`` (the steps so far: observation and
        action), and the parsed data for the benchmark's own board: ``shop``, ``tools`` or ``docs``.
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
    """Return a grade as JSON for the page."""
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
    """Convert named tuples to objects, to any depth."""
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
