"""A stock-engine world that never executes model-written code."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import shutil
import traceback
from collections import Counter
from typing import Any

import appworld
from appworld.apps import get_all_apps
from appworld.collections.models import ModelCollection, ModelCollectionPair
from appworld.common.utils import get_name_to_apis, import_apis_module, import_models_module
from appworld.requester import NumRequestsLimitError, _get_api_name_to_doc

from .changes import collect_changes
from .credentials import Tokens, protect_credentials
from .route_guard import Effort, OutOfTimeError, RouteGuard, check_path, json_size, limit_cpu_time

ARGUMENT_BYTES = 16 << 20
"""Maximum total size of the arguments of all calls in an episode, as JSON."""
GROWTH_BYTES = 512 << 20
"""Growth of this process in an episode beyond which no more calls are answered."""
DIFF_BYTES = 32 << 20
"""Maximum size of the rows of a diff, as JSON; a larger diff is replaced by a digest."""

CALL_LIMIT_S = 10.0
"""Maximum processor time of a call, in seconds; usual calls take hundredths of a second."""
CHECK_LIMIT_S = 5.0
"""Maximum processor time of the check of a step's code, in seconds; usual code takes hundredths."""
MAX_CODE_CHARS = 100_000
"""Maximum length of a step's code; the parser may crash on longer code."""
MAX_CODE_DEPTH = 200
"""Maximum depth of a step's syntax tree. The stock engine's rules take minutes for deeper trees, in
native code that cannot be interrupted, and then fail for want of stack."""

_RESERVED = frozenset({"_app_name", "_api_name", "client", "show", "track"})
_STAND_IN = "\0object"
_FAILED = "Execution failed. Traceback:\n"
_TESTS = "evaluation.py"
_tokens: list[Tokens] = []


def preload() -> None:
    """Import all apps and read their documentation, so that the first use is not slow."""
    for app in get_all_apps():
        import_apis_module(app)
        import_models_module(app)
        get_name_to_apis(app)
        _get_api_name_to_doc(app, include_private_apis=True)


def load_state_pair(world: Any, start: Any) -> Any:
    """Return a world's initial and saved databases as a ``ModelCollectionPair``."""
    memory, disk = world.output_db_home_path_in_memory, world.output_db_home_path_on_disk
    end = ModelCollection.load(
        to_db_home_path=memory, from_db_home_path=disk, load_apps=world.task.allowed_apps
    )
    return ModelCollectionPair(
        start_db_home_path=start.from_db_home_path,
        start_model_collection=start,
        end_db_home_path=memory,
        end_model_collection=end,
    )


class World:
    """The single world in this process.

    Attributes:
        spoilt: True if the engine's state is unfit for another world.
    """

    def __init__(self, name: str) -> None:
        self._name = name  # of its output folder
        self._world: Any = None
        self._guard: Any = None
        self._public: dict[str, frozenset[str]] = {}
        self._max_calls = 0
        self._calls: list[str] = []
        self._taken = 0
        self._start_bytes = 0
        self._call_limit_s = CALL_LIMIT_S
        self._effort = Effort()
        self.spoilt = False

    def begin(
        self,
        task_id: str,
        instruction: str | None,
        seed: int,
        max_calls: int,
        call_limit_s: float = CALL_LIMIT_S,
    ) -> dict[str, Any]:
        """Open a fresh world for a task."""
        self.end()
        if not _tokens:
            _tokens.extend(protect_credentials())
        for tokens in _tokens:
            tokens.forget_all()
        self._world = world = appworld.AppWorld(
            task_id,
            experiment_name=self._name,
            load_ground_truth=False,
            random_seed=seed,
            max_api_calls_per_interaction=max_calls,
        )
        self._guard = RouteGuard(world.requester.client.app)
        self._public = {
            app: frozenset(apis)
            for app, apis in world.apis.items()
            if app in world.task.allowed_apps
        }
        self._max_calls = max_calls
        self._call_limit_s = call_limit_s
        self._calls = []
        self._taken = 0
        if instruction is not None:
            active = self._active_task()
            active.instruction = instruction
            active.save()
        self._start_bytes = _peak_bytes()
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

    def check(self, code: str, limit_s: float = CHECK_LIMIT_S) -> dict[str, str]:
        """Check code against the stock engine's rules. ``kind`` is "" if it may run."""
        reason = ""
        if len(code) > MAX_CODE_CHARS:
            reason = f"The code has {len(code):,} characters; at most {MAX_CODE_CHARS:,} can run."
        elif _syntax_depth(code) > MAX_CODE_DEPTH:
            reason = f"The code cannot be parsed: it is nested over {MAX_CODE_DEPTH} levels deep."
        if reason:
            return {"kind": "syntax", "message": _FAILED + reason}
        try:
            with limit_cpu_time(limit_s):
                safe, reason = self._world.safety_guard.is_syntax_safe(code)
                if not safe:
                    return {"kind": "unsafe", "message": _FAILED + reason}
                ast.parse(code.strip())
        except OutOfTimeError:
            reason = f"The code took more than {limit_s:g} seconds to check. Write simpler code."
            return {"kind": "timeout", "message": _FAILED + reason}
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
        """Answer a request to an app's public API, as the stock engine does."""
        try:
            return {"ok": self._call_api(request.get("app"), request.get("api"), request)}
        except NumRequestsLimitError as error:
            return {"error": str(error), "type": "Exception"}
        except Exception as error:
            return {"error": str(error), "type": _name_of(type(error))}

    def _call_api(self, app: object, api: object, request: dict[str, Any]) -> Any:
        if len(self._calls) >= self._max_calls:
            raise NumRequestsLimitError(self._max_calls)
        if app not in self._public:
            raise Exception(f"No app named '{app}' found.")
        if api not in self._public[str(app)]:
            raise Exception(f"No API named '{api}' found in the {app} app.")
        arguments = request.get("kwargs")
        if not isinstance(arguments, dict):
            raise TypeError("Pass API arguments by name.")
        for name in sorted(_RESERVED & arguments.keys()):
            raise TypeError(f"'{name}' is not a parameter of apis.{app}.{api}.")
        self._taken += self._check_size(arguments)
        arguments = _replace_placeholders(arguments)
        check_path(_get_api_name_to_doc(app, include_private_apis=True)[api]["path"], arguments)
        self._calls.append(f"{app}.{api}")
        guard = self._guard.allow_only(get_name_to_apis(app)[api])
        with guard, self._effort.limit(self._call_limit_s):
            return self._world.apis[app][api](**arguments)

    def _check_size(self, arguments: dict[str, Any]) -> int:
        """Return the size of the arguments in bytes. Raise an exception if it exceeds a limit."""
        wanted = json_size(arguments)
        if self._taken + wanted > ARGUMENT_BYTES:
            raise Exception(
                f"The arguments of all calls may total at most {ARGUMENT_BYTES:,} bytes, got "
                f"{self._taken + wanted:,} bytes."
            )
        if self.grown_bytes > GROWTH_BYTES:
            raise Exception("The apps have run out of memory and cannot be used any more.")
        return wanted

    @property
    def grown_bytes(self) -> int:
        """The growth in this process's peak memory since the world was opened, in bytes."""
        return _peak_bytes() - self._start_bytes

    def end_step(self) -> dict[str, Any]:
        """End a step, and return its calls and the completion status of the task."""
        calls, self._calls = self._calls, []
        self._world.requester.reset_requests()
        self._world.models.reset_db_home_path()
        return {"completed": bool(self._active_task().status), "calls": calls}

    def grade(self) -> dict[str, Any]:
        """Run the task's own tests on the current state."""
        self._save()
        try:
            tracker = appworld.evaluate_task(
                self._world.task_id, self._name, suppress_errors=True, save_report=False
            )
        except Exception as error:
            if not _is_raised_by_tests(error):
                raise
            self.spoilt = True  # the clock was stopped once more than it will be released
            wanted = appworld.task.Task.load(self._world.task_id).ground_truth.test_data
            return {"success": False, "tests": [{**test, "passed": False} for test in wanted]}
        finally:
            self._world.models.reset_db_home_path()
        passes = Counter(test["requirement"] for test in tracker.passes)
        tests = []
        for test in tracker.test_data:  # two tests may have the same wording
            passed = passes[test["requirement"]] > 0
            passes[test["requirement"]] -= passed
            tests.append({**test, "passed": passed})
        return {"success": tracker.success, "tests": tests}

    def diff(self) -> dict[str, Any]:
        """Return the changes since the world was opened."""
        self._save()
        pair = load_state_pair(self._world, self._world.task.model_collection)
        diff = _shorten_diff(collect_changes(pair))
        self._world.models.reset_db_home_path()
        active = self._active_task()
        # The engine treats some texts, such as Nan, as numbers.
        answer = json.loads(active.answer, parse_constant=str) if active.status else None
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

    def _active_task(self) -> Any:
        return self._world.models.supervisor.Task.all()[0]

    def _save(self) -> None:
        """Write the world's databases to disk, so that they can be graded and compared."""
        self._world._save_state(self._world.output_db_home_path_on_disk)


def _shorten_diff(diff: dict[str, Any]) -> dict[str, Any]:
    """Return a database diff, or one digest per database model if the diff is too long."""
    texts = {model: json.dumps(rows, sort_keys=True).encode() for model, rows in diff.items()}
    if sum(map(len, texts.values())) <= DIFF_BYTES:
        return diff
    return {model: {"sha256": hashlib.sha256(text).hexdigest()} for model, text in texts.items()}


def _syntax_depth(code: str) -> int:
    """Return the depth of the code's syntax tree, or 0 if the code cannot be parsed."""
    try:
        level: list[ast.AST] = [ast.parse(code)]
    except Exception:
        return 0
    depth = 0
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _is_raised_by_tests(error: Exception) -> bool:
    """Return True if an error was raised by a task's tests, not caused by a lack of resources.

    Such tests count as failed. A machine error, such as a lack of memory, is a lost episode.
    """
    frames = traceback.extract_tb(error.__traceback__)
    by_tests = any(os.path.basename(frame.filename) == _TESTS for frame in frames)
    return by_tests and not isinstance(error, (MemoryError, OSError))


def _peak_bytes() -> int:
    """Return the peak memory use of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _name_of(error: type[Exception]) -> str:
    """Return the name of an exception as shown in a traceback."""
    if error.__module__ == "builtins":
        return error.__qualname__
    return f"{error.__module__}.{error.__qualname__}"


def _replace_placeholders(value: Any) -> Any:
    """Replace each placeholder with an object that prints like the original value."""
    if isinstance(value, list):
        return [_replace_placeholders(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_STAND_IN}:
        name, text = value[_STAND_IN]
        methods = {"__str__": lambda self: str(text), "__repr__": lambda self: str(text)}
        return type(str(name), (), methods)()
    return {name: _replace_placeholders(item) for name, item in value.items()}
