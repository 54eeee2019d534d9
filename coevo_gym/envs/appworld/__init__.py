"""The AppWorld benchmark: do everyday chores by writing code against the APIs of a few apps."""

from __future__ import annotations

import ast

from coevo_gym.core.task import Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import Step
from coevo_gym.envs.appworld import builder, diagnosis, proposals, tasks
from coevo_gym.envs.appworld.choices import choices
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.appworld.moves import LOOKS
from coevo_gym.envs.appworld.tools import TOOLS, code_of_call
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.provision import data_folder


class AppWorldBenchmark(ProposableFolder):
    """The AppWorld benchmark, as used by curricula and trainers."""

    name = "appworld"
    env_id = "CoEvolve-AppWorld-v0"
    modes = diagnosis.MODES
    diagnose = staticmethod(diagnosis.diagnose)

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the available subsets of AppWorld's tasks."""
        return tasks.SUBSETS if data_folder("appworld") else (tasks.BUILTIN,)

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return the solution to an evolved task, or () for a native task."""
        return task.solution if task.origin == "evolved" else ()

    def symbol(self, step: Step) -> str:
        """Return the apps called by the step's code, in order of appearance, or "!" on failure."""
        return "!" if step.error_kind else " ".join(apps_of(step.action))

    def operations(self, task: Task) -> tuple[str, ...]:
        """Return the APIs that list the user's items or act on them."""
        calls = (
            f"{look.app}.{call.partition('(')[0]}"
            for look in LOOKS
            for call in (look.call, *(act.call for act in look.acts))
        )
        return tuple(dict.fromkeys(calls))

    def tools(self) -> str:
        """Return the tools, which run code or call an API, as JSON text."""
        return TOOLS

    def action_of(self, call: Call) -> str:
        """Return the code that performs a tool call."""
        return code_of_call(call)


def apps_of(action: str) -> list[str]:
    r"""Return the apps named in an action's code, without consecutive repeats.

    Example:
        >>> apps_of("apis.venmo.login()\nfor x in apis.phone.search_contacts(): apis.venmo.y(x)")
        ['venmo', 'phone', 'venmo']
    """
    try:
        tree = ast.parse(code_of(action))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    candidates = [
        (node.lineno, node.col_offset, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "apis"
    ]
    apps = [app for *_, app in sorted(candidates)]
    return [app for app, before in zip(apps, ["", *apps], strict=False) if app != before]


BENCHMARK = AppWorldBenchmark(tasks, builder, choices, proposals)
