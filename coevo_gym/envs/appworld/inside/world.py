"""A world of the stock engine, without its shell: apps, tests and changes."""

from __future__ import annotations

import ast
import json
import shutil
from typing import Any

import appworld
from appworld.apps import get_all_apps
from appworld.collections.models import ModelCollection, ModelCollectionPair
from appworld.common.utils import get_name_to_apis, import_apis_module, import_models_module
from appworld.requester import NumRequestsLimitError, _get_api_name_to_doc

from .changes import changes

_RESERVED = frozenset({"_app_name", "_api_name", "client", "show", "track"})
_STAND_IN = "\0object"
_FAILED = "Execution failed. Traceback:\n"


def preload() -> None:
    """Import all apps, and read their documentation: what the engine else does at first use."""
    for app in get_all_apps():
        import_apis_module(app)
        import_models_module(app)
        get_name_to_apis(app)
        _get_api_name_to_doc(app, include_private_apis=True)


class World:
    """The one world of this process.

    Args:
        name: of its folder of outputs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._world: Any = None
        self._public: dict[str, frozenset[str]] = {}
        self._calls: list[str] = []
        self._completed = False

    def begin(
        self, task_id: str, instruction: str | None, seed: int, max_calls: int
    ) -> dict[str, Any]:
        """Open the world of a task, afresh."""
        self.end()
        for app in get_all_apps():  # else a token of an earlier world would stay logged out
            if manager := getattr(import_apis_module(app), "logging_manager", None):
                manager.blacklisted_tokens.clear()
        self._world = world = appworld.AppWorld(
            task_id,
            experiment_name=self._name,
            load_ground_truth=False,
            random_seed=seed,
            max_api_calls_per_interaction=max_calls,
        )
        self._public = {
            app: frozenset(apis)
            for app, apis in world.apis.items()
            if app in world.task.allowed_apps
        }
        self._calls = []
        self._completed = False
        if instruction is not None:
            active = world.models.supervisor.Task.all()[0]
            active.instruction = instruction
            active.save()
        supervisor = world.task.supervisor
        return {
            "instruction": world.task.instruction if instruction is None else instruction,
            "supervisor": {
                name: supervisor[name]
                for name in ("first_name", "last_name", "email", "phone_number")
            },
            "datetime": world.task.datetime.isoformat(),
            "apps": {app: sorted(apis) for app, apis in self._public.items()},
        }

    def check(self, code: str) -> dict[str, str]:
        """What the stock engine says of code before it runs it; no kind if it would run it."""
        try:
            safe, reason = self._world.safety_guard.is_syntax_safe(code)
            if not safe:
                return {"kind": "unsafe", "message": _FAILED + reason}
            ast.parse(code.strip())
        except SyntaxError as error:
            line = (error.text or "").rstrip()
            reason = f"Syntax error in line:\n{line}\nMessage: {error.msg}"
            return {"kind": "syntax", "message": _FAILED + reason}
        except Exception as error:  # too deep for the parser, or a lone surrogate
            return {"kind": "syntax", "message": f"{_FAILED}The code cannot be parsed: {error}"}
        if not code.strip():
            return {"kind": "syntax", "message": "No code available to execute."}
        return {"kind": "", "message": ""}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of an app's public API, as the stock engine does."""
        try:
            return {"ok": self._request(request.get("app"), request.get("api"), request)}
        except NumRequestsLimitError as error:
            return {"error": str(error), "type": "Exception"}
        except Exception as error:
            return {"error": str(error), "type": _name_of(type(error))}

    def _request(self, app: object, api: object, request: dict[str, Any]) -> Any:
        if app not in self._public:
            raise Exception(f"No app named '{app}' found.")
        if api not in self._public[str(app)]:
            raise Exception(f"No API named '{api}' found in the {app} app.")
        arguments = request.get("kwargs")
        if not isinstance(arguments, dict):
            raise TypeError("The arguments of an API are given by name.")
        for name in sorted(_RESERVED & arguments.keys()):
            raise TypeError(f"'{name}' is not a parameter of apis.{app}.{api}.")
        self._calls.append(f"{app}.{api}")
        return self._world.apis[app][api](**_with_stand_ins(arguments))

    def step_end(self) -> dict[str, Any]:
        """Close a step: the requests since the last one, and whether the task is completed."""
        calls, self._calls = self._calls, []
        if "supervisor.complete_task" in calls:
            self._completed = self._world.task_completed()
        self._world.requester.reset_request_count()
        return {"completed": self._completed, "calls": calls}

    def grade(self) -> dict[str, Any]:
        """Run the task's own tests on the state as it is."""
        self._save()
        tracker = appworld.evaluate_task(
            self._world.task_id, self._name, suppress_errors=True, save_report=False
        )
        self._world.models.reset_db_home_path()
        passed = [test["requirement"] for test in tracker.passes]
        tests = [{**test, "passed": test["requirement"] in passed} for test in tracker.test_data]
        return {"success": tracker.success, "tests": tests}

    def diff(self) -> dict[str, Any]:
        """What has changed since the world was opened."""
        self._save()
        world = self._world
        start = world.task.model_collection
        end = ModelCollection.load(
            to_db_home_path=world.output_db_home_path_in_memory,
            from_db_home_path=world.output_db_home_path_on_disk,
            load_apps=world.task.allowed_apps,
        )
        pair = ModelCollectionPair(
            start_db_home_path=start.from_db_home_path,
            start_model_collection=start,
            end_db_home_path=world.output_db_home_path_in_memory,
            end_model_collection=end,
        )
        diff = changes(pair)
        world.models.reset_db_home_path()
        active = world.models.supervisor.Task.all()[0]
        answer = json.loads(active.answer) if active.status else None
        return {"diff": diff, "answer": answer, "status": active.status}

    def end(self) -> dict[str, Any]:
        """Close the world, if one is open, and remove its folder."""
        if self._world is not None:
            world, self._world = self._world, None
            world.close()
            world.task.close()
            appworld.AppWorld.close_all()
            shutil.rmtree(world.base_output_directory, ignore_errors=True)
        return {}

    def _save(self) -> None:
        """What the stock engine does at the end of each step; its tests read the result."""
        self._world._save_state(self._world.output_db_home_path_on_disk)


def _name_of(error: type[Exception]) -> str:
    """The name of an exception as a traceback has it."""
    if error.__module__ == "builtins":
        return error.__qualname__
    return f"{error.__module__}.{error.__qualname__}"


def _with_stand_ins(value: Any) -> Any:
    """A value from JSON, in which what was no JSON is again an object of its type's name."""
    if isinstance(value, list):
        return [_with_stand_ins(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_STAND_IN}:
        name, text = value[_STAND_IN]
        shown = {"__str__": lambda self: str(text), "__repr__": lambda self: str(text)}
        return type(str(name), (), shown)()
    return {name: _with_stand_ins(item) for name, item in value.items()}
