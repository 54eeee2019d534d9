"""The AppWorld API documentation that an agent has read so far, in structured form."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from coevo_gym.core.trajectory import View

_ASKED = re.compile(
    r"\s*print\(\s*apis\.api_docs\.(show_app_descriptions|show_api_descriptions|show_api_doc)"
    r"\(([^()]*)\)\s*\)\s*"
)
_ARGUMENT = re.compile(r"(app_name|api_name)\s*=\s*['\"](\w+)['\"]")
_APPS = re.compile(r"^Apps: (.+)\.$", re.MULTILINE)


def apps_of(view: View) -> tuple[str, ...]:
    """Return the apps that an episode's first page names."""
    first = view.history[0].observation if view.history else view.observation
    found = _APPS.search(first)
    return tuple(found[1].split(", ")) if found else ()


def read_docs(view: View) -> dict[str, Any]:
    """Return the documentation printed so far; nothing that the agent has not seen.

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
    """Parse printed text as JSON or as a Python literal; None if it is neither."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(output.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None
