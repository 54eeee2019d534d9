"""The state that an episode's page displays: the agent's view and the final grade."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from coevo_gym.core.task import thaw
from coevo_gym.core.trajectory import PastStep, View
from coevo_gym.view.grade import GradeInWords
from coevo_gym.view.play.game import PlayedGame
from coevo_gym.view.play.shop import read_shop
from coevo_gym.view.play.tools import read_tools

_ASKED = re.compile(
    r"\s*print\(\s*apis\.api_docs\.(show_app_descriptions|show_api_descriptions|show_api_doc)"
    r"\(([^()]*)\)\s*\)\s*"
)
_ARGUMENT = re.compile(r"(app_name|api_name)\s*=\s*['\"](\w+)['\"]")
_APPS = re.compile(r"^Apps: (.+)\.$", re.MULTILINE)


def apps_of(view: View) -> tuple[str, ...]:
    """Return the names of the apps that an episode's first page lists."""
    first = view.history[0].observation if view.history else view.observation
    found = _APPS.search(first)
    return tuple(found[1].split(", ")) if found else ()


def read_docs(view: View) -> dict[str, Any]:
    """Return the API documentation that has been printed in the episode so far.

    Returns:
        ``apps`` (app names), ``apis`` (for each requested app, name and description of its APIs)
        and ``docs`` (whole documents, by ``app.api``).
    """
    found: dict[str, Any] = {"apps": list(apps_of(view)), "apis": {}, "docs": {}}
    for action, output in _steps(view):
        asked = _ASKED.fullmatch(_code(action))
        value = _value(output) if asked else None
        if asked is None or value is None:
            continue
        given = dict(_ARGUMENT.findall(asked[2]))
        app, api = given.get("app_name", ""), given.get("api_name", "")
        if asked[1] == "show_api_descriptions" and app and isinstance(value, list):
            found["apis"][app] = [_brief(one) for one in value if isinstance(one, Mapping)]
        elif asked[1] == "show_api_doc" and app and api:
            found["docs"][f"{app}.{api}"] = value
    return found


def _steps(view: View) -> Iterator[tuple[str, str]]:
    """Yield each action with its resulting observation."""
    shown = [step.observation for step in view.history[1:]] + [view.observation]
    return zip((step.action for step in view.history), shown, strict=False)


def _code(action: str) -> str:
    return action.strip().removeprefix("```python").removesuffix("```").strip()


def _brief(one: Mapping[str, Any]) -> dict[str, str]:
    return {"name": str(one.get("name", "")), "description": str(one.get("description", ""))}


@lru_cache(maxsize=256)
def _value(output: str) -> Any:
    """Parse printed text as JSON or as a Python literal; return None if it is neither."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(output.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


Json = dict[str, Any]


def state_of(game: PlayedGame) -> Json:
    """Return the data shown on an episode's page.

    Only the id, name and split come from the task; everything else comes from the view. So the
    state contains neither the verifier nor the solution.

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
    return {} if page is None else {"shop": page.model_dump(mode="json")}


def _tools(view: View, info: Json) -> Json:
    info.pop("bfcl.tools", None)
    told = [
        {
            **tool._asdict(),
            "parameters": [parameter._asdict() for parameter in tool.parameters],
            "signature": tool.signature,
        }
        for tool in read_tools(view)
    ]
    return {"tools": told}


def _docs(view: View, info: Json) -> Json:
    return {"docs": read_docs(view)}


_BOARDS: Mapping[str, Callable[[View, Json], Json]] = {
    "webshop": _shop,
    "bfcl": _tools,
    "appworld": _docs,
}
