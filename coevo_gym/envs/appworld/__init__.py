"""AppWorld: get everyday chores done by writing code against the APIs of a handful of apps."""

from __future__ import annotations

import ast

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory, Step, Trajectory
from coevo_gym.envs.appworld import builder, proposals, tasks
from coevo_gym.envs.appworld.choices import choices
from coevo_gym.envs.appworld.diagnosis import MODES, diagnose
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.appworld.moves import LOOKS
from coevo_gym.envs.appworld.tags import tags_of
from coevo_gym.envs.diagnosis import Diagnosis
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.provision import data_folder


class AppWorldBenchmark(ProposableFolder):
    """AppWorld behind the seam that curricula and trainers know."""

    name = "appworld"
    env_id = "CoEvolve-AppWorld-v0"
    modes = MODES

    @property
    def subsets(self) -> tuple[str, ...]:
        """The subsets that are at hand."""
        return tasks.SUBSETS if data_folder("appworld") else (tasks.BUILTIN,)

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """An evolved task's solution. Native ones are free code, which is no choice."""
        return task.solution if task.origin == "evolved" else ()

    def symbol(self, step: Step) -> str:
        """The apps that the step's code calls, in the order of its text; "!" if it failed."""
        return "!" if step.error_kind else " ".join(apps_of(step.action))

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """The apps that its words speak of, and whether it asks a question or wants a change."""
        return tags_of(task)

    def operations(self, task: Task) -> tuple[str, ...]:
        """The APIs that list somebody's things and act on them; the apps have more."""
        return tuple(
            dict.fromkeys(
                f"{look.app}.{api}"
                for look in LOOKS
                for api in (look.api, *(act.api for act in look.acts))
            )
        )

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """One label an episode, from errors, calls and tests; see the folder's ``diagnosis.py``."""
        return diagnose(episode)


def apps_of(action: str) -> list[str]:
    r"""The apps that an action's code names, each run of one app once.

    Example:
        >>> apps_of("apis.venmo.login()\nfor x in apis.phone.search_contacts(): apis.venmo.y(x)")
        ['venmo', 'phone', 'venmo']
    """
    try:
        tree = ast.parse(code_of(action))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [
        (node.lineno, node.col_offset, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "apis"
    ]
    apps = [app for *_, app in sorted(found)]
    return [app for app, before in zip(apps, ["", *apps], strict=False) if app != before]


BENCHMARK = AppWorldBenchmark(tasks, builder, choices, proposals)
