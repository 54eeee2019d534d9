"""The ALFWorld benchmark: household tasks in a text world."""

from __future__ import annotations

from coevo_gym.core.trajectory import Step
from coevo_gym.envs.alfworld import builder, diagnosis, proposals, tasks
from coevo_gym.envs.alfworld.choices import choices
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.provision import data_folder

_VERBS = {"gotolocation": "goto", "pickupobject": "take", "putobject": "put", "toggleobject": "use"}
_BEGINNING = "-= Welcome"


class ALFWorldBenchmark(ProposableFolder):
    """The ALFWorld benchmark, as used by curricula and trainers."""

    name = "alfworld"
    env_id = "CoEvolve-ALFWorld-v0"
    seen_subsets = ("valid_seen",)
    modes = diagnosis.MODES
    diagnose = staticmethod(diagnosis.diagnose)
    restrictions = staticmethod(proposals.restrictions)

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the installed subsets of ALFWorld's games."""
        return tasks.SUBSETS if data_folder("alfworld") else (tasks.BUILTIN,)

    def symbol(self, step: Step) -> str:
        """Return the verb of a step's command, or "!" if the command had no effect.

        In the first step of an episode, the task type precedes the verb.
        """
        verb = "!" if step.error_kind else verb_of(next(iter(step.calls), ""))
        first = step.observation.startswith(_BEGINNING)
        return f"{step.extras.get('alfworld.task_type', '')} {verb}".strip() if first else verb


def verb_of(action: str) -> str:
    """Return the verb in the name of an engine action.

    Example:
        >>> verb_of("gotolocation"), verb_of("heatobject"), verb_of("examinereceptacle")
        ('goto', 'heat', 'examine')
    """
    return _VERBS.get(action) or action.removesuffix("object").removesuffix("receptacle")


BENCHMARK = ALFWorldBenchmark(tasks, builder, choices, proposals)
