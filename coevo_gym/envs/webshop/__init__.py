"""The WebShop benchmark: find and buy the product that an instruction describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coevo_gym.core.evolution import Draft, Walk
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EvalTrajectory, Step, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.envs.webshop import builder, proposals, tasks
from coevo_gym.envs.webshop.choices import choices
from coevo_gym.envs.webshop.diagnosis import MODES, diagnose
from coevo_gym.envs.webshop.tasks import tags_of

BELOW_ALL = 0.001
"""A price in dollars that is lower than every product's price."""


class WebShopBenchmark(ProposableFolder):
    """WebShop as a benchmark for curricula and trainers."""

    name = "webshop"
    env_id = "CoEvolve-WebShop-v0"
    subsets = tasks.SUBSETS
    modes = MODES

    def symbol(self, step: Step) -> str:
        """Return a step's kind, such as search or buy. Return "!" for an impossible step."""
        return "!" if step.error_kind else next(iter(step.calls), "")

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return tags for the product's department and family, and for the requested options."""
        return tags_of(task)

    def restrictions(
        self, task: Task, walks: Sequence[Walk], split_of: Callable[[str], Split]
    ) -> tuple[str, ...]:
        """Return a rule about the products that may be asked for; see ``proposals.py``."""
        return proposals.restrictions(task, walks, split_of)

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """Diagnose an episode from its actions and score, as described in ``diagnosis.py``."""
        return diagnose(episode)

    def broken(self, task: Task) -> Task:
        """Return an unsolvable copy of a task, with a hidden price cap below every price."""
        verifier = task.verifier.model_copy(update={"price_cap": BELOW_ALL})
        return task.model_copy(update={"verifier": verifier})


BENCHMARK = WebShopBenchmark(tasks, builder, choices, proposals)
