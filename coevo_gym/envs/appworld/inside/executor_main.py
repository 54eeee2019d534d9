"""The untrusted process that runs model-written code and can call only public APIs.

It runs inside the sandbox with the standard library and a folder with pendulum and freezegun.
Output and error messages are the same as in the stock engine.
"""

from __future__ import annotations

import ast
import builtins
import codeop
import copy
import io
import json
import linecache
import os
import random
import re
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from textwrap import dedent
from typing import Any

REQUEST_BYTES = 1 << 20
PREAMBLE = """\
import builtins
import calendar
import datetime
import itertools
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from functools import reduce

import pendulum
from pendulum import MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY

# The stock engine's errors count lines from here on, too.
from appworld.common.datetime import pendulum
from appworld.common.datetime import VanillaDate as Date
from appworld.common.datetime import VanillaDateTime as DateTime
from appworld.common.datetime import VanillaTime as Time




def print(*args, **kwargs):
    if not kwargs and len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
        indent = 1 if len(json.dumps(args[0])) >= 100 else None
        builtins.print(json.dumps(args[0], indent=indent))
    else:
        builtins.print(*args, **kwargs)

def input(*args, **kwargs):
    raise Exception("input(..) is not allowed. All decisions must be made autonomously.")
"""

_FRAME = re.compile(r' +File "(.*?)", line \d+, in .+')
_CELL = re.compile(r'File "<python-input-\d+>"')


def main() -> None:
    """Run the code sent in one episode, until the connection is closed."""
    control, apps = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for end in (control, apps):
        end.set_inheritable(False)
    sys.path.append(sys.argv[3])
    _add_engine_modules()
    import appworld.common.datetime  # noqa: F401 (before time stands still, as in the engine)
    import freezegun

    own = os.getpid()
    orders = control.makefile("r", encoding="utf-8")
    start = json.loads(orders.readline())
    executor = Executor(Apps(apps), start["apps"])
    freezegun.freeze_time(datetime.fromisoformat(start["datetime"])).start()
    random.seed(start["seed"])
    control.sendall(b'{"ready": true}\n')
    for line in orders:
        order = json.loads(line)
        answer = executor.run(order["code"], order["max_chars"])
        if os.getpid() != own:
            os._exit(0)  # a fork made by the code, which must not answer
        control.sendall(json.dumps({"id": order["id"], **answer}).encode() + b"\n")


def _add_engine_modules() -> None:
    """Provide the modules that the engine's date classes need."""
    from datetime import datetime as moment

    def parse_time(text: str, *formats: str) -> Any:
        from appworld.common.datetime import DateTime

        for form in formats[:-1]:
            try:
                return DateTime.strptime(text, form)
            except ValueError:
                pass
        return DateTime.strptime(text, formats[-1])

    def refuse_random_time(*bounds: Any) -> Any:
        raise NotImplementedError("Random times are not supported. Pass an explicit time.")

    iso = "%Y-%m-%dT%H:%M:%S"
    modules: dict[str, dict[str, Any]] = {
        "appworld.apps": {},
        "appworld.apps.api_lib": {
            "parse_date": lambda text: parse_time(text, "%Y-%m-%d", iso),
            "parse_datetime": lambda text: parse_time(text, "%Y-%m-%d|%H:%M:%S", iso),
            "parse_time": lambda text: parse_time(text, "%H:%M"),
            "date_to_string": lambda date: moment.strftime(date, "%Y-%m-%d"),
            "datetime_to_string": lambda date: moment.strftime(date, "%Y-%m-%d|%H:%M:%S"),
            "time_to_string": lambda time: time.strftime("%H:%M"),
        },
        "appworld.common.random": {"choose_from_time_range": refuse_random_time},
    }
    for name, members in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)


class Apps:
    """A client for the apps' APIs. Another process serves them over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")
        self._turn = threading.Lock()
        self._count = 0

    def call(self, app: str, api: str, arguments: Mapping[str, Any]) -> Any:
        """Call an API and wait for the response.

        Raises:
            Exception: the same as the stock engine's.
        """
        with self._turn:
            self._count += 1
            answer = self._exchange(
                {"id": self._count, "app": app, "api": api, "kwargs": copy.deepcopy(arguments)}
            )
        if "error" in answer:
            raise _make_exception(answer["type"], answer["error"])
        return answer["ok"]

    def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply. Replies to other requests are skipped."""
        line = json.dumps(request, default=_placeholder).encode() + b"\n"
        if len(line) > REQUEST_BYTES:
            name = f"apis.{request['app']}.{request['api']}"
            raise ValueError(f"The arguments of {name} exceed 1 MB.")
        self._connection.sendall(line)
        while line := self._answers.readline():
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == request["id"]:
                return answer
        raise ConnectionError(
            "AppWorld's apps have stopped. All calls will fail until the next episode."
        )


def _placeholder(value: Any) -> dict[str, Sequence[str]]:
    """Return a placeholder for a value that JSON cannot represent."""
    return {"\0object": [type(value).__name__, str(value)]}


def _make_exception(name: str, text: str) -> Exception:
    """Create an exception whose class has this name."""
    known = getattr(builtins, name, None)
    base = known if isinstance(known, type) and issubclass(known, Exception) else Exception
    if base is Exception and name == "Exception":
        return Exception(text)
    module, _, short = name.rpartition(".")
    members = {"__module__": module or "builtins", "__str__": lambda self: text}
    kind: type[Exception] = type(short, (base,), members)
    return kind.__new__(kind)  # some classes' __init__ needs more than a text


class Names(dict[str, Any]):
    """A dictionary whose items can also be read as attributes.

    Args:
        items: its items.
        missing: error message for a missing attribute, with a placeholder for its name.
    """

    def __init__(self, items: Mapping[str, Any], missing: str) -> None:
        super().__init__(items)
        object.__setattr__(self, "_missing", missing)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        missing = object.__getattribute__(self, "_missing").format(key=name)
        raise _make_exception("fastapi.exceptions.HTTPException", f"422: {missing}")

    def __dir__(self) -> list[str]:
        return list(self)


class Requester:
    """Access to APIs by app name and API name."""

    def __init__(self, apps: Apps) -> None:
        self._apps = apps

    def request(self, _app_name: str, _api_name: str, **data: Any) -> Any:
        """Call an API and wait for the response."""
        return self._apps.call(_app_name, _api_name, data)


def _api_function(apps: Apps, app: str, api: str) -> Callable[..., Any]:
    def _api_request(**kwargs: Any) -> Any:
        return apps.call(app, api, kwargs)

    _api_request.__qualname__ = "_wrap_api_request.<locals>._api_request"  # shown in errors
    return _api_request


class Output(io.TextIOBase):
    """A text stream that keeps only the first ``limit`` characters of its input."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._parts: list[str] = []
        self.cut = False

    def writable(self) -> bool:
        """Return True, because the stream is always writable."""
        return True

    def write(self, text: str) -> int:
        """Write text, dropping whatever exceeds the limit."""
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        if self._left:
            self._parts.append(text[: self._left])
        self.cut |= len(text) > self._left
        self._left -= min(self._left, len(text))
        return len(text)

    def text(self) -> str:
        """Return the text written to the stream, truncated to the first ``limit`` characters."""
        return "".join(self._parts)


class Executor:
    """An interpreter that keeps variables from one piece of code to the next."""

    def __init__(self, apps: Apps, names: Mapping[str, Sequence[str]]) -> None:
        self._compile = codeop.Compile()
        self._count = 0
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._variables = vars(module)
        builtins.SystemExit = Exception  # type: ignore[misc, assignment]  # as the engine does
        self._run_statements(PREAMBLE)
        self._variables["requester"] = Requester(apps)
        self._variables["apis"] = Names(
            {
                app: Names(
                    {api: _api_function(apps, app, api) for api in apis},
                    f"No API named '{{key}}' found in the {app} app.",
                )
                for app, apis in names.items()
            },
            "No app named '{key}' found.",
        )

    def run(self, code: str, max_chars: int) -> dict[str, Any]:
        """Run code and return its output or its error."""
        output, failed = Output(max_chars), ""
        sys.stdout, sys.stderr = output, Output(0)
        try:
            self._run_statements(code.strip())
        except BaseException as error:
            output, failed = Output(max_chars), "exception"
            output.write("Execution failed. Traceback:\n" + _format_error(error))
        text = output.text()
        message = text if output.cut or text.strip() else "Execution successful."
        return {"output": message, "cut": output.cut, "error": failed}

    def _run_statements(self, code: str) -> None:
        """Run Python code one statement at a time. Each is compiled just before it runs."""
        self._count += 1
        name = f"<python-input-{self._count}>"
        lines = [line + "\n" for line in code.split("\n")]
        linecache.cache[name] = (len(code), None, lines, name)
        for statement in ast.parse(code, name).body:
            module: Any = ast.Module([statement], [])
            compiled = self._compile(module, name, "exec")
            exec(compiled, self._variables)  # noqa: S102 (the purpose of this process)


def _format_error(error: BaseException) -> str:
    """Return the traceback, limited to frames in the model-written code."""
    lines = []
    own = False
    for line in "".join(traceback.format_exception(error)).splitlines():
        if line.startswith("  "):
            if frame := _FRAME.match(line):
                own = frame[1].startswith("<python-input")
            if not own:
                continue
        lines.append(line)
    first = next((i for i, line in enumerate(lines) if "<python-input" in line), 0)
    text = _CELL.sub('File "<python-input>"', "\n".join(lines[first:]))
    text = text.replace("fastapi.exceptions.HTTPException", "Exception")
    return dedent(text.replace("Exception: 422:", "Exception:"))


if __name__ == "__main__":
    main()
    os._exit(0)  # also ends threads that code has left running
