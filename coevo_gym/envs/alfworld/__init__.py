"""The ALFWorld benchmark: household tasks in a text world."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coevo_gym.core.evolution import Draft, Walk
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EvalTrajectory, Step, Trajectory
from coevo_gym.envs.alfworld import builder, proposals, tasks
from coevo_gym.envs.alfworld.choices import choices
from coevo_gym.envs.alfworld.diagnosis import MODES, diagnose
from coevo_gym.envs.alfworld.tasks import tags_of
from coevo_gym.envs.diagnosis import Diagnosis
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.provision import data_folder

_VERBS = {"gotolocation": "goto", "pickupobject": "take", "putobject": "put", "toggleobject": "use"}
_BEGINNING = "-= Welcome"


class ALFWorldBenchmark(ProposableFolder):
    """The ALFWorld benchmark, as used by curricula and trainers."""

    name = "alfworld"
    env_id = "CoEvolve-ALFWorld-v0"
    modes = MODES

    @property
    def subsets(self) -> tuple[str, ...]:
        """Names of the installed subsets of ALFWorld's games."""
        return tasks.SUBSETS if data_folder("alfworld") else (tasks.BUILTIN,)

    def symbol(self, step: Step) -> str:
        """Return the verb of a step's command, or "!" if the command had no effect.

        In the first step of an episode, the task type precedes the verb.
        """
        verb = "!" if step.error_kind else verb_of(next(iter(step.calls), ""))
        first = step.observation.startswith(_BEGINNING)
        return f"{step.extras.get('alfworld.task_type', '')} {verb}".strip() if first else verb

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return tags for the scene, the kind of goal and the type of object."""
        return tags_of(task)

    def restrictions(
        self, task: Task, walks: Sequence[Walk], split_of: Callable[[str], Split]
    ) -> tuple[str, ...]:
        """Return a rule about the goals that are met at the start; see ``proposals.py``."""
        return proposals.restrictions(task, walks, split_of)

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """Label an episode based on its commands and its goal; see ``diagnosis.py``."""
        return diagnose(episode)


def verb_of(action: str) -> str:
    """Return the verb in the name of an engine action.

    Example:
        >>> verb_of("gotolocation"), verb_of("heatobject"), verb_of("examinereceptacle")
        ('goto', 'heat', 'examine')
    """
    return _VERBS.get(action) or action.removesuffix("object").removesuffix("receptacle")


BENCHMARK = ALFWorldBenchmark(tasks, builder, choices, proposals)
